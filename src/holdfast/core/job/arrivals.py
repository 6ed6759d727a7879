"""A node asks to join."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.admission import Objection, object_to_id, object_to_number, object_to_settings
from holdfast.core.ids import NodePhase
from holdfast.core.job.events import Accept, Action, NodeRegistered, Refuse, Tale
from holdfast.core.job.losses import lose
from holdfast.core.job.state import Member, Phase, State
from holdfast.core.job.succession import welcome
from holdfast.core.job.wishes import bequeath, remind
from holdfast.core.story import NodeJoined, NodeRefused


def register(job: State, event: NodeRegistered, *, now: float) -> list[Action]:
    holder = job.members.get(event.node)
    if holder is not None and holder.nonce == event.nonce:
        job.leases.renew(event.node, now=now)
        is_awaited = job.is_inheriting and event.node in job.awaited
        told = welcome(job, holder, event, now=now) if is_awaited else []
        return [Accept(event.node, event.nonce), *told, *bequeath(job, event.nonce), *remind(job, holder)]
    reason, retry_after_s = _objection(job, event, holder, now=now)
    if reason:
        refusal = Refuse(event.node, event.nonce, reason, retry_after_s)
        return [Tale(NodeRefused(event.node, reason)), refusal] if job.refusals.spend(now=now) else [refusal]
    actions = [] if holder is None else _replace(job, holder, event, now=now)
    ready = event.status.phase is NodePhase.READY
    member = Member(event, event.status, ready_at=now if ready else None)
    job.members[event.node] = member
    job.leases.renew(event.node, now=now)
    if event.is_server:
        _appoint(job, event.node)
    joined = NodeJoined(event.node, event.host, event.pid, event.num_workers, event.pid_space)
    return [*actions, Accept(event.node, event.nonce), Tale(joined), *bequeath(job, event.nonce)]


def _objection(job: State, event: NodeRegistered, holder: Member | None, *, now: float) -> Objection:
    """Why a newcomer cannot join and when to ask again, or an empty reason."""
    if job.phase is Phase.FINISHED:
        return "the job has ended", None
    if event.nonce in job.replaced:
        return f"another process has taken node id {event.name!r}", None
    if reason := object_to_settings(event, job.rules):
        return reason, None
    if event.status.generation > job.generation and not job.rules.is_launched:
        found = f"it is in generation {event.status.generation}, which this scheduler knows nothing of"
        return f"{found}: the state of the cluster is lost, and all have to be started again", None
    if job.sole_nonce is not None and event.nonce != job.sole_nonce:
        return "this job runs on one node only; start it with --nnodes and --rdzv-endpoint to use more", None
    if holder is not None:
        if holder.is_dead and job.rules.replaces:
            return "", None
        silence_s = job.leases.silence_s(event.node, now=now)
        return object_to_id(event, holder.registered, job.rules, silence_s=silence_s)
    return object_to_number(event, [m.registered for m in job.of_role(is_server=event.is_server)], job.rules)


def _replace(job: State, holder: Member, newcomer: NodeRegistered, *, now: float) -> list[Action]:
    """Another incarnation has waited long enough for an id: whoever holds it has to go."""
    job.replaced.add(holder.nonce)
    reason = f"pid {newcomer.pid} on {newcomer.host} has taken node id {newcomer.name!r}"
    return [Refuse(newcomer.node, holder.nonce, reason, None), *lose(job, newcomer.node, reason, now=now)]


def _appoint(job: State, node: str) -> None:
    """A server that comes when the world is formed has the rank it had, or that of a lost one."""
    if job.world is None or node in job.world.servers:
        return
    vacant = next(name for name in job.world.servers if name not in job.members)
    servers = tuple(node if name == vacant else name for name in job.world.servers)
    job.world = replace(job.world, servers=servers)
