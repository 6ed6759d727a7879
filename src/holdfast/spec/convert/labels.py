"""MindCluster's labels and annotations as settings of ours."""

from __future__ import annotations

from holdfast.errors import SpecError
from holdfast.spec.convert.limits import clamp_seconds
from holdfast.spec.convert.picking import Entries, Path, Picker
from holdfast.spec.relaunch import CAUSES
from holdfast.spec.rules import OFF
from holdfast.spec.strategy import Strategy

WAIT_LEAST_S, WAIT_MOST_S = 30, 270
LABELS, ANNOTATIONS = ("metadata", "labels"), ("metadata", "annotations")


def convert_labels(picker: Picker) -> Entries:
    entries = _strategies(picker) | _wait(picker)
    entries |= _fault_scheduling(picker) | _retry_times(picker) | _sub_health(picker)
    _pod_rescheduling(picker)
    return entries


def _strategies(picker: Picker) -> Entries:
    """Names in any order, with blanks or twice; an unknown one is told, and left out."""
    path: Path = (*ANNOTATIONS, "recover-strategy")
    enable: Path = (*LABELS, "process-recover-enable")
    text, enabled = picker.text(*path), picker.text(*enable)
    if enabled in ("off", "pause"):
        if text is not None:
            picker.note(f"{picker.at(path)} does nothing here: {enable[-1]} is {enabled}")
        return picker.entry("recover.strategy", Strategy.EXIT.value, enable)
    if text is None:
        return {}
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [name for name in names if name in list(Strategy)]
    for name in names:
        if name not in known:
            picker.note(f"{picker.at(path)}: {name!r} is left out: there is {', '.join(Strategy)}")
    return picker.entry("recover.strategy", ",".join(known or [Strategy.EXIT.value]), path)


def _wait(picker: Picker) -> Entries:
    path: Path = (*ANNOTATIONS, "wait-reschedule-timeout")
    seconds = clamp_seconds(picker, path, least=WAIT_LEAST_S, most=WAIT_MOST_S, otherwise=WAIT_MOST_S)
    return {} if seconds is None else picker.entry("timeouts.join", str(seconds), path)


def _fault_scheduling(picker: Picker) -> Entries:
    path: Path = (*LABELS, "fault-scheduling")
    match picker.text(*path):
        case None:
            return {}
        case "grace":
            picker.note(
                f"{picker.at(path)}: 'grace' is what happens anyway: a node is asked to leave, and killed after "
                "timeouts.shutdown; one that is lost is replaced"
            )
            return {}
        case "force":
            picker.note(
                f"{picker.at(path)}: 'force' means here that a node has a second to leave; one that is lost is replaced"
            )
            return picker.entry("timeouts.shutdown", "1", path)
        case other:
            picker.note(f"{picker.at(path)}: {other!r} means here that no node is replaced")
            return {
                key: value for cause in CAUSES for key, value in picker.entry(f"relaunch.{cause}", "0", path).items()
            }


def _retry_times(picker: Picker) -> Entries:
    """How often a failure of the script is answered by a restart: the least that anybody names."""
    path: Path = (*LABELS, "fault-retry-times")
    text = picker.text(*path)
    if text is None:
        return {}
    if not text.isdecimal():
        raise SpecError(picker.at(path), text, "it must be a whole number, 0 or more")
    return count_restarts(picker, int(text), path)


def count_restarts(picker: Picker, limit: int, path: Path) -> Entries:
    """So many in all: none is forgiven."""
    return picker.entry("recover.max_restarts", str(limit), path) | picker.entry("recover.restart_window", OFF, path)


def _pod_rescheduling(picker: Picker) -> None:
    path: Path = (*LABELS, "pod-rescheduling")
    text = picker.text(*path)
    if text == "on":
        picker.note(f"{picker.at(path)}: 'on' is what happens anyway: only nodes that are lost are replaced")
    elif text is not None:
        picker.note(
            f"{picker.at(path)}: {text!r} does nothing here: nodes that are well are never replaced with others"
        )


def _sub_health(picker: Picker) -> Entries:
    """No device tells here that it is unwell; a node that holds up the others is what comes nearest."""
    path: Path = (*LABELS, "subHealthyStrategy")
    text = picker.text(*path)
    if text is None:
        return {}
    valid = ("ignore", "graceExit", "forceExit", "hotSwitch")
    if text not in valid:
        raise SpecError(picker.at(path), text, f"it must be one of {', '.join(valid)}")
    if text == "ignore":
        picker.note(f"{picker.at(path)}: 'ignore' is what happens anyway: a node that is slow is only told of")
        return {}
    picker.note(f"{picker.at(path)}: {text!r} means here that a node which is slow makes way for another one")
    return picker.entry("checks.exclude_stragglers", "on", path)
