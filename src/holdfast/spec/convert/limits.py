"""Limits in seconds that files of MindCluster and MindIO give: they have a range there, and are held to it here."""

from __future__ import annotations

from holdfast.spec.convert.picking import Entries, Path, Picker

ACTION_LIMIT, DECISION_LIMIT = "TTP_NORMAL_ACTION_TIME_LIMIT", "MINDIO_WAIT_MINDX_TIME"
ACTION_LEAST_S, ACTION_MOST_S, ACTION_USUAL_S = 30, 1800, 180
START_S = 600
"""MindIO gives new processes so long to start before it begins to count; here both are one limit."""


def clamp_seconds(picker: Picker, path: Path, *, least: int, most: int, otherwise: int) -> int | None:
    """The number there, within its range; None if there is none."""
    text = picker.text(*path)
    if text is None:
        return None
    limits = f"from {least} to {most}"
    try:
        asked = int(text)
    except ValueError:
        picker.note(f"{picker.at(path)}: {text!r} is no whole number of seconds {limits}; {otherwise} is used")
        return otherwise
    seconds = min(max(asked, least), most)
    if seconds != asked:
        picker.note(f"{picker.at(path)}: {asked} is not {limits}; {seconds} is used")
    return seconds


def convert_limits(picker: Picker, variables: Path) -> Entries:
    """MindIO's limits, from the variables of a container."""
    entries: Entries = {}
    for index in range(picker.count(*variables)):
        name, path = picker.text(*variables, index, "name"), (*variables, index, "value")
        if name == DECISION_LIMIT:
            picker.note(
                f"{picker.at(path)}: {name} does nothing here: the master decides at once; "
                "how long a node is waited for is timeouts.join"
            )
        if name != ACTION_LIMIT:
            continue
        limit_s = clamp_seconds(picker, path, least=ACTION_LEAST_S, most=ACTION_MOST_S, otherwise=ACTION_USUAL_S)
        if limit_s is not None:
            picker.note(f"{picker.at(path)}: {name} is for a whole repair here, and {START_S} s more for its processes")
            entries |= picker.entry("timeouts.repair", str(START_S + limit_s), path)
    return entries
