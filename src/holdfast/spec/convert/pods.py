"""A pod template: its first container's command, variables and resources as fields of ours."""

from __future__ import annotations

from holdfast.errors import SpecError
from holdfast.spec.convert.launch_line import convert_command
from holdfast.spec.convert.picking import Entries, Path, Picker
from holdfast.spec.job_fields import ROLE
from holdfast.spec.job_file import Entry


def convert_template(picker: Picker, template: Path, *, num_nodes: int) -> Entries:
    containers: Path = (*template, "spec", "containers")
    if picker.count(*containers) == 0:
        raise SpecError(picker.at(containers), None, "it must have a container")
    for index in range(1, picker.count(*containers)):
        picker.note_field((*containers, index), "does nothing here: only the first container of a node is run")
    first: Path = (*containers, 0)
    picker.text(*first, "name")
    entries = convert_command(picker, first, num_nodes=num_nodes)
    entries |= _resources(picker, (*first, "resources"))
    variables = convert_variables(picker, (*first, "env"))
    if variables:
        entries = join_variables(entries, Entry(variables, picker.at((*first, "env"))))
    grace: Path = (*template, "spec", "terminationGracePeriodSeconds")
    if (seconds := picker.text(*grace)) is not None:
        entries |= picker.entry("timeouts.shutdown", seconds, grace)
    return entries


def join_variables(entries: Entries, more: Entry) -> Entries:
    known = entries.get(f"{ROLE}.env")
    assert isinstance(more.written, dict), "variables have names"
    written = {**more.written, **(known.written if known and isinstance(known.written, dict) else {})}
    return {**entries, f"{ROLE}.env": Entry(written, more.source)}


def convert_variables(picker: Picker, path: Path) -> dict[str, str]:
    variables: dict[str, str] = {}
    for index in range(picker.count(*path)):
        name = picker.text(*path, index, "name")
        value = picker.text(*path, index, "value")
        if name is not None and value is not None:
            variables[name] = value
        else:
            picker.note_field((*path, index), f"does nothing here: {name or 'it'} has no value that is written out")
    return variables


def _resources(picker: Picker, path: Path) -> Entries:
    """Limits count; requests only where there is no limit."""
    entries: Entries = {}
    for kind in ("limits", "requests"):
        for name in picker.keys(*path, kind):
            field = f"{ROLE}.{name}"
            where: Path = (*path, kind, name)
            if name in ("cpu", "memory") and field not in entries:
                entries |= picker.entry(field, picker.text(*where) or "", where)
            elif name in ("cpu", "memory"):
                picker.note_field(where, "does nothing here: the limit counts")
            elif kind == "limits":
                picker.note_field(where, "does nothing here: nodes share the devices of this machine")
            else:
                picker.text(*where)
    return entries
