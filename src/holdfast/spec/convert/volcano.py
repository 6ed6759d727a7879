"""Volcano's Job, as MindCluster uses it."""

from __future__ import annotations

from holdfast.errors import SpecError
from holdfast.spec.convert.drafts import make_draft
from holdfast.spec.convert.gangs import Gang, convert_gang
from holdfast.spec.convert.picking import Path, Picker
from holdfast.spec.job_file import Draft

TASKS: Path = ("spec", "tasks")


def convert_volcano(picker: Picker) -> Draft:
    version = picker.text("apiVersion") or ""
    if not version.startswith("batch.volcano.sh/"):
        raise SpecError(picker.at(("apiVersion",)), version, "a Job must be one of batch.volcano.sh")
    if picker.count(*TASKS) == 0:
        raise SpecError(picker.at(TASKS), None, "it must have a task")
    parts: list[Path] = [(*TASKS, index) for index in range(picker.count(*TASKS))]
    for part in parts:
        picker.text(*part, "name")
    gang = Gang(parts=tuple(parts), least=("spec", "minAvailable"), retries=("spec", "maxRetry"))
    return make_draft(picker, {"worker": (gang.parts[-1], convert_gang(picker, gang))})
