"""How well this node does: the results of checks, the pace of its ranks, and how fast they came to a first step."""

from __future__ import annotations

from holdfast.core.health.results import CheckResult, NodePace
from holdfast.core.ids import Check, NodePhase, Resumption
from holdfast.core.workers.events import Action, Probe, StepCommitted
from holdfast.core.workers.state import State


def probe(group: State, check: Check) -> list[Action]:
    if check.key <= group.check_key or group.is_ending():
        return []
    group.check_key = check.key
    return [Probe(check)]


def note_probed(group: State, result: CheckResult, *, now: float) -> list[Action]:
    if result.key != group.check_key[:2]:
        return []
    group.check = result
    return [group.report(now=now)]


def note_pace(group: State, pace: NodePace, *, now: float) -> list[Action]:
    if pace.generation != group.generation or group.phase is not NodePhase.RUNNING:
        return []
    group.pace = pace
    return [group.report(now=now)]


def note_resumption(group: State, found: Resumption, *, now: float) -> list[Action]:
    if found.generation != group.generation:
        return []
    group.resumption = found
    return [group.report(now=now)]


def note_commit(group: State, event: StepCommitted, *, now: float) -> list[Action]:
    local = group.local_rank_of(event.pid)
    if local is None:
        return []
    group.committed[local], group.saves = event.generation, event.saves
    if event.generation == group.generation:
        slowest = max(sum(group.timings_ms.values()), sum(event.timings_ms.values()))
        group.timings_ms = event.timings_ms if sum(event.timings_ms.values()) == slowest else group.timings_ms
    whole = len(group.committed) == len(group.pids()) and min(group.committed.values()) == group.generation
    return [group.report(now=now)] if whole else []
