"""What the pace of the ranks says about the nodes of a world that runs."""

from __future__ import annotations

from holdfast.core.health.story import StragglerFound, StragglerGone
from holdfast.core.health.stragglers import Straggler
from holdfast.core.job.events import Action, Tale
from holdfast.core.job.state import Member, Phase, State
from holdfast.core.job.wishes import remind


def note_pace(job: State, member: Member) -> list[Action]:
    """A node has told its pace: who holds up the others, and who does no longer."""
    pace, world, stragglers = member.status.pace, job.world, job.health.stragglers
    if pace is None or world is None or job.phase is not Phase.RUNNING or not job.is_current(member):
        return []
    told: list[Action] = []
    if stragglers.generation != job.generation:
        ended = stragglers.begin(job.generation)
        told += [Tale(StragglerGone(s.rank, s.node, s.generation, "its world is over")) for s in ended]
    found, gone = stragglers.note(member.registered.node, pace, world_size=world.size)
    told += [Tale(StragglerGone(s.rank, s.node, s.generation, "as fast as the others")) for s in gone]
    return told + [action for straggler in found for action in _face(job, straggler)]


def reconsider(job: State) -> list[Action]:
    """A straggler that was kept makes way once it can: a spare has come, or a repair is over."""
    actions: list[Action] = []
    for straggler in job.health.stragglers.active if job.rules.exclude_straggler else ():
        member = job.members.get(straggler.node)
        is_here = member is not None and job.is_current(member) and member.nonce not in job.health.excluded
        if is_here and straggler.generation == job.generation and _decide(job, straggler) == "replaced":
            actions += _face(job, straggler)
    return actions


def _face(job: State, straggler: Straggler) -> list[Action]:
    decision = _decide(job, straggler)
    suspicion = straggler.suspicion
    record = StragglerFound(
        straggler.rank,
        straggler.node,
        straggler.generation,
        suspicion.cause,
        suspicion.own_ms,
        suspicion.others_ms,
        decision,
    )
    if decision != "replaced":
        return [Tale(record)]
    member = job.members[straggler.node]
    job.health.excluded[member.nonce] = f"rank {record.rank} {record.why}"
    return [Tale(record), *remind(job, member)]


def _decide(job: State, straggler: Straggler) -> str:
    """`replaced`, or why not."""
    if not job.rules.exclude_straggler:
        return "reported"
    member = job.members[straggler.node]
    if job.is_host(member):
        return "kept: the master is on its node"
    if not job.rules.awaits_rank and not _has_spare_like(job, member):
        return "kept: there is no spare node"
    others = [name for name in job.members if name != straggler.node and job.members[name].nonce in job.health.excluded]
    if any(job.is_current(job.members[name]) for name in others):
        return "kept: another node makes way"
    return "kept: a fault is being repaired" if job.incident is not None or job.vacant else "replaced"


def _has_spare_like(job: State, member: Member) -> bool:
    wanted = member.registered.num_workers
    return any(job.members[name].registered.num_workers == wanted for name in job.spares())
