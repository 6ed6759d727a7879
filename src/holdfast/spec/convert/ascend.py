"""MindCluster's AscendJob."""

from __future__ import annotations

from holdfast.errors import SpecError
from holdfast.spec.convert.drafts import make_draft
from holdfast.spec.convert.gangs import Gang, convert_gang
from holdfast.spec.convert.picking import Path, Picker
from holdfast.spec.job_file import Draft

SPECS: Path = ("spec", "replicaSpecs")
TRAINERS = ("Master", "Chief", "Worker")
RUN_POLICY: Path = ("spec", "runPolicy")


def convert_ascend(picker: Picker) -> Draft:
    roles = picker.keys(*SPECS)
    trainers = [name for name in roles if name in TRAINERS]
    for name in roles:
        if name not in TRAINERS:
            picker.note_field((*SPECS, name), "does nothing here: the submitter runs what brings the nodes together")
    if not trainers:
        raise SpecError(picker.at(SPECS), ", ".join(roles), f"it must have one of {', '.join(TRAINERS)}")
    gang = Gang(
        parts=tuple((*SPECS, name) for name in trainers),
        least=(*RUN_POLICY, "schedulingPolicy", "minAvailable"),
        retries=(*RUN_POLICY, "backoffLimit"),
    )
    return make_draft(picker, {"worker": (gang.parts[-1], convert_gang(picker, gang))})
