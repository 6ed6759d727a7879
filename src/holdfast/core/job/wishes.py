"""What each node should do now. It is repeated whenever a status shows that it has not been done."""

from __future__ import annotations

from holdfast.core.ids import Check, Finish, Leave, NodePhase, Order, Prepare, Run, Stop
from holdfast.core.job.events import Action, Bequeath, Tell
from holdfast.core.job.state import Member, Phase, State


def _wish(job: State, member: Member) -> Order | None:
    """What this node should do now, if its status does not show it doing so already."""
    status = member.status
    busy = status.phase in (NodePhase.RUNNING, NodePhase.BROKEN, NodePhase.SUCCEEDED)
    if job.phase is Phase.FINISHED and job.outcome is not None:
        return Finish(job.outcome)
    if status.holds:
        return None if _is_keeper(job, member) else Stop(job.generation, "others have the state")
    if (reason := job.health.excluded.get(member.nonce)) is not None and not job.is_host(member):
        return None if member.is_leaving else Leave(reason)
    if member.registered.is_server:
        # It only has to learn its rank, once; how the world is repaired is none of its business.
        unaware = status.phase is NodePhase.READY and job.phase is Phase.RUNNING
        return Run(job.world) if unaware and job.world is not None else None
    if job.phase is Phase.STOPPING:
        on_its_way = status.phase in (NodePhase.DRAINING, NodePhase.LEAVING, NodePhase.LEFT)
        done = on_its_way or member.is_idle(job.generation)
        if done:
            return None
        saves = job.is_ending and _is_keeper(job, member)
        reason = "the group is being stopped" if job.outcome_after_stop is None else job.outcome_after_stop.reason
        return Stop(job.generation, reason, job.stops_at_once, saves)
    if job.phase is Phase.GATHERING or job.world is None:
        return Stop(job.generation, "no world exists") if busy else _examination(job, member)
    if not job.is_current(member):
        if busy:
            return Stop(job.generation, "this node has no place in the world")
        return _examination(job, member) or _preparation(job, member)
    if status.generation >= job.generation:
        return _examination(job, member)
    if job.world.repairs and status.phase in (NodePhase.RUNNING, NodePhase.BROKEN, NodePhase.READY):
        return Run(job.world)
    if busy:
        return Stop(job.generation - 1, "a newer generation exists")
    return Run(job.world) if status.phase is NodePhase.READY else None


def _is_keeper(job: State, member: Member) -> bool:
    """Whether the last step is lost if this node does not save it: nobody who has it stays, or all are to end and it
    is the first of them.
    """
    placements = () if job.world is None else job.world.placements
    placed = [job.members[each.node] for each in placements if each.node in job.members]
    able = [each for each in placed if each.status.holds or each.status.phase in (NodePhase.RUNNING, NodePhase.BROKEN)]
    staying = [each for each in able if not each.is_leaving]
    return staying[0] is member and job.is_ending if staying else True


def _examination(job: State, member: Member) -> Check | None:
    check = job.health.check
    return check.order_for(member.registered.node) if check is not None else None


def _preparation(job: State, member: Member) -> Order | None:
    """A spare's processes wait at their loop, so that nobody waits for them when they are needed."""
    if job.phase is not Phase.RUNNING or member.ready_at is None or member.is_prepared or not job.is_fit(member):
        return None
    assert job.world is not None, "a running job has a world"
    return Prepare(job.world) if job.rules.max_spares and job.can_take_in() else None


def remind(job: State, member: Member) -> list[Action]:
    order = _wish(job, member)
    return [] if order is None else [Tell(member.registered.node, member.nonce, order)]


def remind_all(job: State) -> list[Action]:
    return [action for member in job.members.values() for action in remind(job, member)]


def bequeath(job: State, nonce: str = "") -> list[Action]:
    """Let this node, or all of them, know what whoever succeeds the master has to know."""
    return [Bequeath(nonce)] if job.world is not None and job.deputies() else []
