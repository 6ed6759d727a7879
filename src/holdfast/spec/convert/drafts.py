"""Drafts from what each role of a foreign file says: some of it is the role's, and some the whole job's here."""

from __future__ import annotations

from holdfast.spec.convert.picking import Entries, Path, Picker
from holdfast.spec.job_fields import ROLE
from holdfast.spec.job_file import Draft, RoleDraft


def make_draft(picker: Picker, roles: dict[str, tuple[Path, Entries]]) -> Draft:
    """A draft without notes, from where each role is and what it says."""
    job: Entries = {}
    drafts: dict[str, RoleDraft] = {}
    for name, (path, entries) in roles.items():
        drafts[name] = RoleDraft({field: each for field, each in entries.items() if _is_role(field)}, picker.at(path))
        for field, entry in entries.items():
            if _is_role(field):
                continue
            first = job.setdefault(field, entry)
            if first.written != entry.written:
                picker.note(f"{entry.source}: {entry.written} for {field} does nothing here: the first role's counts")
    return Draft(job, drafts)


def _is_role(field: str) -> bool:
    return field.startswith(f"{ROLE}.")
