"""Settings that every process of a job has to be told alike."""

from __future__ import annotations

from collections.abc import Mapping


def disagreements(here: Mapping[str, str], there: Mapping[str, str], *, whose: tuple[str, str]) -> str:
    """What differs, each with both values; empty if nothing does. `whose` says who `here` and `there` are."""
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    sides = ((name, here.get(name, "unset"), there.get(name, "unset")) for name in names)
    return "; ".join(f"{name} is {ours} {whose[0]} and {theirs} {whose[1]}" for name, ours, theirs in sides)
