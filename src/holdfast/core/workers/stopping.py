"""The workers are to end, whoever says so: first they are asked, then killed, and last everything is swept."""

from __future__ import annotations

import signal

from holdfast.core.faults import signal_name
from holdfast.core.ids import NodePhase, Outcome, Stop
from holdfast.core.workers.events import Action, Exit, Forward, GiveNotice, Sweep
from holdfast.core.workers.state import ACTIVE, State


def obey_stop(group: State, stop: Stop, *, now: float) -> list[Action]:
    group.floor = max(group.floor, stop.generation)
    if group.generation > stop.generation:
        return []
    if group.phase in (NodePhase.DRAINING, NodePhase.LEAVING):
        return [] if stop.saves or group.held_back is None else pass_signal_on(group, group.held_back[0])
    group.is_called_off |= group.phase in ACTIVE
    if group.phase in ACTIVE and stop.at_once:
        group.phase, group.reason = NodePhase.DRAINING, stop.reason
        return [group.report(now=now), *sweep(group)]
    if group.phase in ACTIVE and stop.saves:
        asked = _ask(group, signal.SIGTERM)
        return drain(group, stop.reason, now=now, ask=asked, grace_s=group.spec.shutdown_s)
    if group.phase in ACTIVE:
        return drain(group, stop.reason, now=now)
    group.phase = NodePhase.READY
    return [group.report(now=now)]


def leave(group: State, reason: str, *, now: float) -> list[Action]:
    """The master has no use for this node."""
    if group.exit_with is not None:
        return []
    group.exit_with = Exit(1, reason, None)
    return drain(group, reason, now=now, phase=NodePhase.LEAVING)


def finish(group: State, outcome: Outcome, *, now: float) -> list[Action]:
    if group.exit_with is not None:
        return []
    group.exit_with = Exit(outcome.exit_code, outcome.reason, outcome)
    group.give_up_at = None
    if group.phase in (NodePhase.DRAINING, NodePhase.LEAVING):
        return []
    return drain(group, outcome.reason, now=now)


def obey_signal(group: State, number: int, *, now: float) -> list[Action]:
    name, code = signal_name(number), 128 + number
    if group.signalled or number == signal.SIGHUP:
        # A second signal means now; a hang-up is the loss of this node, which has no time to drain.
        group.exit_with = group.exit_with or Exit(code, f"{name} received", None)
        group.phase, group.reason = NodePhase.LEAVING, group.reason or group.exit_with.reason
        return sweep(group)
    group.signalled = True
    reason = f"{name} received on {group.spec.node}"
    ends_job = number != signal.SIGTERM or (group.hosts_master and not group.is_bequeathed)
    if ends_job:
        group.end_job = code
        group.give_up_at = now + group.spec.shutdown_s + group.spec.rules.lease_s
    else:
        group.exit_with = group.exit_with or Exit(code, reason, None)
    phase = NodePhase.DRAINING if ends_job else NodePhase.LEAVING
    asked = _ask(group, number)
    return drain(group, reason, now=now, phase=phase, ask=asked, grace_s=group.spec.shutdown_s)


def pass_signal_on(group: State, pid: int) -> list[Action]:
    """This worker has saved its state, or is gone, or others have the state: nothing is left to wait for."""
    if group.held_back is None or group.held_back[0] != pid:
        return []
    number, group.held_back = group.held_back[1], None
    return [Forward(number)]


def _ask(group: State, number: int) -> list[Action]:
    """Pass a signal on to the workers, once one of them has saved what may be lost with them."""
    if group.held_back is not None:
        group.held_back = (group.held_back[0], number)
        return []
    if (keeper := _keeper(group)) is None:
        return [Forward(number)]
    group.held_back = (keeper, number)
    return [GiveNotice(keeper, group.spec.shutdown_s / 2)]


def _keeper(group: State) -> int | None:
    """The first worker here that can save the state."""
    able = [local for local, pid in group.alive.items() if pid in group.attached]
    return group.alive[min(able)] if group.phase in ACTIVE and group.can_move() and able else None


def give_up(group: State) -> list[Action]:
    """The master has not ended the job in time, as somebody here has asked for: this node ends alone."""
    assert group.end_job is not None, "somebody has asked for the end"
    group.give_up_at = None
    group.exit_with = Exit(group.end_job, group.reason, None)
    return sweep(group)


def drain(
    group: State,
    reason: str,
    *,
    now: float,
    phase: NodePhase = NodePhase.DRAINING,
    ask: list[Action] | None = None,
    grace_s: float | None = None,
) -> list[Action]:
    """Ask the workers to end; kill them when the grace is over."""
    group.phase, group.reason = phase, reason
    if not group.alive:
        return [group.report(now=now), *sweep(group)]
    group.kill_at = now + (group.spec.drain_s if grace_s is None else grace_s)
    return [group.report(now=now), *([Forward(signal.SIGTERM)] if ask is None else ask)]


def sweep(group: State) -> list[Action]:
    group.kill_at = None
    if group.sweeping:
        return []
    group.sweeping = True
    return [Sweep()]


def settle(group: State, *, now: float) -> list[Action]:
    """Nothing is alive on this node any more."""
    group.sweeping = False
    group.kill_at = group.held_back = None
    group.alive, group.pending, group.faults, group.dying = {}, set(), [], {}
    if group.exit_with is not None:
        if group.phase is not NodePhase.LEAVING:
            return [group.exit_with]
        group.phase = NodePhase.LEFT
        return [group.report(now=now), group.exit_with]
    clean = group.phase is NodePhase.RUNNING
    group.phase = NodePhase.SUCCEEDED if clean else NodePhase.READY
    return [group.report(now=now)]
