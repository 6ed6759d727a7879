"""Who is tested with whom, so that two rounds tell a bad node from one that was only tested with it.

First neighbours are paired; one that is left over makes a group of three, in which each is tested with each. In the
second round everybody who looked bad gets a partner who did not: if that goes well, the first partner was the cause.
With three nodes the group of three decides at once: two of its tests have the bad node in common. With two there is
no third to ask, so only what each does on its own can decide.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

Group = tuple[str, ...]


def pair_up(nodes: Sequence[str]) -> list[Group]:
    """Neighbours in pairs; the last three together if the number is odd."""
    whole = len(nodes) - (3 if len(nodes) % 2 and len(nodes) > 1 else 0)
    groups = [tuple(nodes[at : at + 2]) for at in range(0, whole, 2)]
    return [*groups, tuple(nodes[whole:])] if whole < len(nodes) else groups


def pair_again(nodes: Sequence[str], *, suspects: Collection[str], met: Mapping[str, Collection[str]]) -> list[Group]:
    """Each of `suspects` with one who is above suspicion, where there are enough; nobody with whom it `met` before,
    where that can be helped."""
    rest = [node for node in nodes if node not in suspects]
    groups: list[Group] = []
    alone: list[str] = []
    for node in (node for node in nodes if node in suspects):
        if partner := _find(rest, but=met.get(node, ())):
            rest.remove(partner)
            groups.append((node, partner))
        else:
            alone.append(node)
    rest = alone + rest
    while len(rest) > 1:
        node = rest.pop(0)
        partner = _find(rest, but=met.get(node, ()))
        assert partner is not None, "there is one more"
        rest.remove(partner)
        groups.append((node, partner))
    if rest and groups:
        groups[-1] = (*groups[-1], rest[0])
    elif rest:
        groups.append((rest[0],))
    return groups


def pairs_in(group: Group) -> list[tuple[str, str]]:
    """The pairs of a group, in the order in which they are tested; the first of each pair leads it."""
    return list(combinations(group, 2))


def _find(nodes: Sequence[str], *, but: Collection[str]) -> str | None:
    strangers = (node for node in nodes if node not in but)
    return next(strangers, nodes[0] if nodes else None)
