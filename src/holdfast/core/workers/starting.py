"""A world begins on this node, or goes on with other workers beside those that live."""

from __future__ import annotations

import signal

from holdfast.core.ids import NodePhase, WorkerFailure, World
from holdfast.core.workers.events import Action, Forward, Invite, Launch, LaunchFailed, Park, WorkerStarted
from holdfast.core.workers.silence import is_cut_off
from holdfast.core.workers.state import ACTIVE, State
from holdfast.core.workers.stopping import drain


def run(group: State, world: World, *, now: float) -> list[Action]:
    placement = world.placement_of(group.spec.node)
    stale = world.generation <= max(group.generation, group.floor)
    # Whoever was cut off for so long may have been replaced after this order was sent.
    if stale or is_cut_off(group, now=now) or group.is_ending() or placement is None:
        return []
    repairs = world.repairs and group.phase in ACTIVE
    if group.phase is not NodePhase.READY and not repairs:
        return []
    group.phase, group.generation = NodePhase.RUNNING, world.generation
    group.world, group.placement = world, placement
    group.failures, group.faults, group.timings_ms, group.reason = [], [], {}, ""
    group.pace, group.is_called_off = None, False
    if not repairs:
        group.alive, group.pending, group.attached, group.committed = {}, set(), set(), {}
        group.any_ended, group.store_generation, group.saves = False, 0, False
    missing = tuple(
        local for local in range(placement.num_workers) if local not in group.alive and local not in group.pending
    )
    group.pending |= set(missing)
    actions: list[Action] = [_invite(group, local, pid) for local, pid in group.alive.items() if pid in group.attached]
    needs_store = placement.group_rank == 0 and not group.store_generation
    if needs_store:
        group.store_generation = world.generation
    if missing or needs_store:
        actions.append(Launch(world, placement, missing, needs_store))
    return actions


def prepare(group: State, world: World) -> list[Action]:
    return [Park(world)] if group.phase is NodePhase.READY and not group.is_ending() else []


def note_parked(group: State, count: int, *, now: float) -> list[Action]:
    group.parked = count
    return [group.report(now=now)] if group.phase is NodePhase.READY else []


def note_start(group: State, event: WorkerStarted, *, now: float) -> list[Action]:
    group.pending.discard(event.local_rank)
    group.alive[event.local_rank] = event.pid
    if group.world is not None and group.world.repairs:
        group.newcomers.add(event.pid)
    if group.phase not in ACTIVE:
        # Stopping began while it was being started; what others wait for, it waits for too.
        return [Forward(signal.SIGTERM)] if group.held_back is None else []
    return [] if group.pending else [group.report(now=now)]


def note_launch_failure(group: State, event: LaunchFailed, *, now: float) -> list[Action]:
    if event.generation != group.generation or group.placement is None:
        return []
    group.failures.append(WorkerFailure(group.placement.first_rank, 0, group.spec.node, 0, error=event.reason))
    return drain(group, event.reason, now=now)


def note_attached(group: State, pid: int, *, now: float) -> list[Action]:
    local = group.local_rank_of(pid)
    if local is None or group.world is None:
        return []
    group.attached.add(pid)
    invitation = _invite(group, local, pid)
    return [invitation, group.report(now=now)] if group.can_move() else [invitation]


def _invite(group: State, local_rank: int, pid: int) -> Invite:
    assert group.world is not None, "there is a world to join"
    assert group.placement is not None, "and a place in it"
    return Invite(pid, local_rank, group.world, group.placement)
