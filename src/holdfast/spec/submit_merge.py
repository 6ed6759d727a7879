"""What counts for each field of a job, and where it comes from: flags win over the file, the file over the defaults."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from holdfast.errors import SpecError
from holdfast.spec.job_fields import FIELDS, ROLE, Field
from holdfast.spec.job_file import Draft, Entry, RoleDraft
from holdfast.spec.job_kinds import NAME, Written
from holdfast.spec.submit_flags import Asked
from holdfast.spec.variables import DEFAULT, Found

USUAL_ROLE = "worker"


@dataclass(frozen=True, slots=True)
class Merged:
    """What counts, by the path of the field in the table."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """Of the job."""
    roles: dict[str, RoleDraft] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)
    """What to tell of every field, of each role, by the path as the user writes it."""


def merge(asked: Asked, draft: Draft) -> Merged:
    roles, meant = _roles(asked, draft)
    merged = Merged()
    for section, fields in groupby(FIELDS, key=lambda each: each.section):
        listed = list(fields)
        if section != ROLE:
            merged.entries.update(_merge(listed, draft.entries, asked.entries, merged.found))
            continue
        for name, role in roles.items():
            flags = asked.entries if name == meant else {}
            entries = _merge(listed, role.entries, flags, merged.found, role=name)
            merged.roles[name] = RoleDraft(entries, role.source)
    return merged


def _roles(asked: Asked, draft: Draft) -> tuple[dict[str, RoleDraft], str]:
    """The roles by their names, and the one that flags are about."""
    if asked.role is not None:
        NAME.parse(asked.role, "--role")
    if len(draft.roles) < 2:
        name, role = next(iter(draft.roles.items()), (USUAL_ROLE, RoleDraft({}, f"roles.{asked.role or USUAL_ROLE}")))
        return {asked.role or name: role}, asked.role or name
    names = ", ".join(draft.roles)
    if asked.role is not None and asked.role not in draft.roles:
        raise SpecError("--role", asked.role, f"it must be one of {names}")
    about_roles = [entry for path, entry in asked.entries.items() if path.startswith(ROLE)]
    if about_roles and asked.role is None:
        first = about_roles[0]
        raise SpecError(
            first.source, render(first.written), f"the job has several roles: say which with --role: {names}"
        )
    return draft.roles, asked.role or ""


def _merge(
    fields: Sequence[Field],
    file: Mapping[str, Entry],
    flags: Mapping[str, Entry],
    found: dict[str, Found],
    *,
    role: str = "",
) -> dict[str, Entry]:
    """What counts for some fields; what to tell of them is put into `found`."""
    entries: dict[str, Entry] = {}
    for each in fields:
        shown = each.path.replace("*", role)
        by_file, by_flag = file.get(each.path), flags.get(each.path)
        if by_file is not None and by_flag is not None and isinstance(by_flag.written, dict):
            assert isinstance(by_file.written, dict), "both are of the same kind"
            by_flag = Entry({**by_file.written, **by_flag.written}, f"{_place(by_file.source)} and {by_flag.source}")
            by_file = None
        entry = by_flag or by_file
        if entry is not None:
            overruled = f"{_place(by_file.source)}: {render(by_file.written)}" if by_flag and by_file else ""
            found[shown] = Found(render(entry.written), _place(entry.source), overruled)
        elif each.default is not None:
            entry = Entry(each.default, DEFAULT)
            found[shown] = Found(each.default, DEFAULT)
        else:
            found[shown] = Found("", DEFAULT)
        if entry is not None:
            entries[each.path] = entry
    return entries


def _place(source: str) -> str:
    """Where in the file, without the name of the field."""
    return source.rpartition(": ")[0] or source


def render(written: Written) -> str:
    """What was written, as one line."""
    if isinstance(written, str):
        return written
    if isinstance(written, dict):
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in written.items())
    return shlex.join(written)
