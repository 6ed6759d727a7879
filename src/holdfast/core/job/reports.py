"""What a node says of itself."""

from __future__ import annotations

from holdfast.core.ids import NodePhase, NodeStatus
from holdfast.core.job.checking import note_check
from holdfast.core.job.dumping import end_dump
from holdfast.core.job.ending import end, fail
from holdfast.core.job.events import Acknowledge, Action, Refuse, StatusReported, Tale
from holdfast.core.job.losses import face_loss, let_go, unseat
from holdfast.core.job.pacing import note_pace
from holdfast.core.job.repair import face, symptom_of
from holdfast.core.job.state import Member, Phase, State
from holdfast.core.job.wishes import remind
from holdfast.core.story import Resumed, WorkerFailed, WorkersStarted


def take_status(job: State, event: StatusReported, *, now: float) -> list[Action]:
    member = job.members.get(event.node)
    if member is None or member.nonce != event.nonce:
        # It was given up: its workers are fenced by now, and it has to register again.
        return [Refuse(event.node, event.nonce, "not registered; register again", 0.0)]
    job.leases.renew(event.node, now=now)
    heard: list[Action] = [Acknowledge(event.node, event.nonce, event.seq)]
    member.seq, old, member.status = event.seq, member.status, event.status
    became_ready = event.status.phase is NodePhase.READY
    if not became_ready:
        member.ready_at = None
    elif member.ready_at is None:
        member.ready_at = now
    actions = heard + note_start(job, member, now=now) + judge(job, member, old, now=now)
    actions += _note_resumption(job, member, old)
    return actions + note_check(job, member, old) + note_pace(job, member) + remind(job, member)


def hear(job: State, event: StatusReported, *, now: float) -> list[Action]:
    member = job.members[event.node]
    member.seq = max(member.seq, event.seq)
    job.leases.renew(event.node, now=now)
    return [Acknowledge(event.node, event.nonce, event.seq), *remind(job, member)]


def note_start(job: State, member: Member, *, now: float) -> list[Action]:
    status, node, world = member.status, member.registered.node, job.world
    if world is None or status.phase is not NodePhase.RUNNING or status.generation != world.generation:
        return []
    if status.committed == world.generation:
        job.committed.add(node)
    placement = world.placement_of(node)
    if node in job.started or placement is None or len(status.pids) < placement.num_workers:
        return []
    job.started.add(node)
    known, job.pids[node] = job.pids.get(node, ()), status.pids
    pids = {placement.first_rank + n: pid for n, pid in enumerate(status.pids) if pid not in known}
    if not pids:
        return []
    since_ms = None if job.failed_at is None else (now - job.failed_at) * 1000
    if len(job.started) == len(world.placements) and job.incident is None:
        job.failed_at = None
    return [Tale(WorkersStarted(world.generation, node, pids, since_ms))]


def _note_resumption(job: State, member: Member, old: NodeStatus) -> list[Action]:
    found = member.status.resumption
    if found is None or found == old.resumption or found.generation != job.generation:
        return []
    return [Tale(Resumed(found.generation, found.step, found.verdict))]


def judge(job: State, member: Member, old: NodeStatus, *, now: float) -> list[Action]:
    """What a node's new status means for the current generation."""
    status, node = member.status, member.registered.node
    if job.phase is Phase.FINISHED or job.is_inheriting:
        return []
    if status.end_job is not None and not job.is_ending:
        return end(job, status.end_job, status.reason, now=now)
    if status.phase in (NodePhase.LEAVING, NodePhase.LEFT):
        return let_go(job, member, now=now)
    if not job.is_current(member):
        return []
    if status.generation != job.generation:
        return _take_place(job, member, now=now) if job.is_called_off(member) else []
    tales: list[Action] = []
    for failure in status.failures[len(old.failures) if old.generation == status.generation else 0 :]:
        job.failures.append(failure)
        if not failure.stopped_by_us:
            tales.append(Tale(WorkerFailed(job.generation, failure)))
    if job.phase is not Phase.RUNNING:
        return tales
    if job.is_called_off(member):
        return tales + _take_place(job, member, now=now)
    if status.phase is NodePhase.SUCCEEDED:
        job.succeeded.add(node)
    elif job.after_dump is not None and status.phase is not NodePhase.RUNNING:
        return tales + end_dump(job, f"the last step was not saved: {symptom_of(member)}", now=now)
    elif status.phase is NodePhase.BROKEN:
        return tales + face(job, member, now=now)
    elif status.phase in (NodePhase.DRAINING, NodePhase.READY):
        return tales + fail(job, symptom_of(member), now=now)
    return tales


def _take_place(job: State, member: Member, *, now: float) -> list[Action]:
    """A node has stopped its workers, and no other one its own: once they are gone, it is as if it were lost."""
    if job.phase is not Phase.RUNNING or member.status.phase is not NodePhase.READY:
        return []
    actions = face_loss(job, member.registered.node, unseat(member), now=now)
    job.blame_worker = any(not failure.stopped_by_us for failure in member.status.failures)
    return actions
