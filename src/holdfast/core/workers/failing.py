"""Workers that raise, fail a step or end, and what the whole group loses with them."""

from __future__ import annotations

import signal

from holdfast.core.ids import NodePhase, Placement, StepFault, WorkerFailure
from holdfast.core.workers.events import Action, Kill, StateLost, StepFailed, StoreDied, WorkerExited
from holdfast.core.workers.state import ACTIVE, State
from holdfast.core.workers.stopping import drain, pass_signal_on, sweep


def note_fault(group: State, event: StepFailed, *, now: float) -> list[Action]:
    local = group.local_rank_of(event.pid)
    if local is None or event.generation != group.generation or group.phase not in ACTIVE or group.placement is None:
        return []
    rank = group.placement.first_rank + local
    group.faults.append(StepFault(rank, group.spec.node, event.step, event.kind, event.error))
    if group.dying:
        return []
    group.phase = NodePhase.BROKEN
    return [group.report(now=now)]


def note_raised(group: State, pid: int, *, now: float) -> list[Action]:
    local = group.local_rank_of(pid)
    if local is not None and group.phase in ACTIVE:
        group.dying[local] = now + group.spec.drain_s
    return []


def kill_dying(group: State, *, now: float) -> list[Action]:
    """End the workers whose script has raised and that did not end by themselves in time."""
    overdue: list[Action] = [Kill(group.alive[local]) for local, at in group.dying.items() if now >= at]
    group.dying = {local: at for local, at in group.dying.items() if now < at}
    return overdue


def note_exit(group: State, event: WorkerExited, *, now: float) -> list[Action]:
    if group.alive.get(event.local_rank) != event.pid or group.placement is None:
        return []
    del group.alive[event.local_rank]
    group.dying.pop(event.local_rank, None)
    group.committed.pop(event.local_rank, None)
    group.any_ended |= event.exit_code == 0
    if event.exit_code != 0:
        group.failures.append(_failure(group, event, group.placement))
    if group.phase in ACTIVE and event.exit_code != 0:
        if not group.can_move():
            return drain(group, "", now=now)
        group.phase = NodePhase.BROKEN
        return [group.report(now=now)]
    return pass_signal_on(group, event.pid) if group.alive or group.pending else sweep(group)


def note_lost_state(group: State, event: StateLost, *, now: float) -> list[Action]:
    lost = event.generation == group.generation and group.phase in ACTIVE
    return drain(group, "no rank holds a state to resume from", now=now) if lost else []


def note_store_death(group: State, event: StoreDied, *, now: float) -> list[Action]:
    serving = event.generation == group.store_generation and group.phase in ACTIVE
    return drain(group, "the workers' store died", now=now) if serving else []


def _failure(group: State, event: WorkerExited, placement: Placement) -> WorkerFailure:
    stopping = group.phase not in ACTIVE
    # One that had raised before it was stopped ended by its exception; our signal only cut its clean-up short.
    raised = stopping and bool(event.error) and event.signal in (signal.SIGTERM, signal.SIGKILL)
    return WorkerFailure(
        placement.first_rank + event.local_rank,
        event.local_rank,
        group.spec.node,
        event.pid,
        1 if raised else event.exit_code,
        None if raised else event.signal,
        event.error,
        event.step,
        stopping and not event.error,
    )
