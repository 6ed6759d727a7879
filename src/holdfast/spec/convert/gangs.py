"""Groups of pods that all take part in one training: together they are the nodes of one role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import SpecError
from holdfast.spec.convert.labels import convert_labels, count_restarts
from holdfast.spec.convert.limits import convert_limits
from holdfast.spec.convert.picking import Entries, Path, Picker
from holdfast.spec.convert.pods import convert_template
from holdfast.spec.job_fields import ROLE


@dataclass(frozen=True, slots=True)
class Gang:
    parts: tuple[Path, ...]
    least: Path
    """Where the file says with how many the job can run."""
    retries: Path
    """Where it says how often the whole job may start again."""


def convert_gang(picker: Picker, gang: Gang) -> Entries:
    num_nodes = count_nodes(picker, gang.parts)
    entries: Entries = {}
    if name := picker.text("metadata", "name"):
        entries |= picker.entry("name", name, ("metadata", "name"))
    entries |= convert_alike(picker, gang.parts, num_nodes=num_nodes)
    least = picker.text(*gang.least)
    nodes = str(num_nodes) if least is None else f"{_whole(picker, gang.least, least)}:{num_nodes}"
    where: Path = gang.least if least is not None else (*gang.parts[-1], "replicas")
    entries |= picker.entry(f"{ROLE}.nodes", nodes, where)
    labels = convert_labels(picker)
    return entries | labels | _retries(picker, gang.retries, labels)


def count_nodes(picker: Picker, parts: Sequence[Path]) -> int:
    counted: list[Path] = [(*part, "replicas") for part in parts]
    return sum(_whole(picker, path, picker.text(*path) or "1") for path in counted)


def convert_alike(picker: Picker, parts: Sequence[Path], *, num_nodes: int) -> Entries:
    """What the pods of the last part are; the others are made like them."""
    drafts = [convert_template(picker, (*part, "template"), num_nodes=num_nodes) for part in parts]
    entries = drafts[-1] | convert_limits(picker, (*parts[-1], "template", "spec", "containers", 0, "env"))
    for part, draft in zip(parts[:-1], drafts[:-1], strict=True):
        for field, entry in draft.items():
            if field in entries and entry.written != entries[field].written:
                at = picker.at(part)
                picker.note(f"{at}: its {field.rpartition('.')[2]} does nothing here: nodes are alike, as the last")
    return entries


def _retries(picker: Picker, path: Path, labels: Entries) -> Entries:
    """A limit for all restarts; it counts where it is below that of the label."""
    text = picker.text(*path)
    if text is None:
        return {}
    limit = _whole(picker, path, text)
    known = labels.get("recover.max_restarts")
    if known is not None and int(str(known.written)) <= limit:
        return {}
    return count_restarts(picker, limit, path)


def _whole(picker: Picker, path: Path, text: str) -> int:
    if not text.isdecimal():
        raise SpecError(picker.at(path), text, "it must be a whole number, 0 or more")
    return int(text)
