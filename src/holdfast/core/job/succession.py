"""From one master to the next: what a master leaves behind, and when it must not go on.

Nodes that have lost their master elect another one with more than half of the last world, so a master that hears
less than half of it may have been succeeded. Whoever hears exactly half goes on: nobody else can be elected.
"""

from __future__ import annotations

from holdfast.core.ids import NodePhase, NodeStatus
from holdfast.core.job.dumping import DUMP_S
from holdfast.core.job.ending import end, halt
from holdfast.core.job.events import Action, Inherited, NodeRegistered, Tale, TimePassed, Will
from holdfast.core.job.losses import face_loss, unseat
from holdfast.core.job.reports import judge, note_start
from holdfast.core.job.state import Member, Phase, State
from holdfast.core.story import Isolated, MasterMoved, NodeLost

GENERATION_GAP = 10
"""Between the last generation that all know of and the first of the next master: orders of the lost one that only
some nodes got must not be taken for its own."""

CHECK_GAP = 1_000_000
"""Between the checks of one master and those of the next: what a node was asked by the lost one is another check."""

MAX_DEPUTIES = 8
"""So many nodes know all that a master has to know; the others know where these are."""


def make_will(job: State, *, now: float, num_told: int, elapsed_s: float) -> Will | None:
    """None as long as there is nothing to inherit, or nobody who could."""
    if job.world is None or job.phase is Phase.FINISHED:
        return None
    deputies = job.deputies()
    if not deputies:
        return None
    placed = [job.members[p.node].registered for p in job.world.placements if p.node in job.members]
    return Will(
        job.master,
        job.host,
        job.world,
        tuple(placed),
        job.budget.used(now=now),
        job.num_incidents,
        num_told,
        elapsed_s,
        tuple(deputies[:MAX_DEPUTIES]),
    )


def inherit(job: State, event: Inherited, *, now: float) -> list[Action]:
    """Go on where the lost master was, as soon as every node of its world has said how it is, or is gone."""
    will, world = event.will, event.will.world
    moved = MasterMoved(event.master.term, event.heir, will.host, event.evidence, event.voters)
    job.master, job.host = event.master, event.heir
    job.phase, job.world, job.gather_until = Phase.RUNNING, world, None
    job.generation, job.restart_count, job.gap = world.generation, world.restart_count, GENERATION_GAP
    job.num_incidents, job.is_inheriting = will.num_incidents, True
    job.electorate, job.established = tuple(p.node for p in world.placements), world.generation
    job.health.num_checks = event.master.term * CHECK_GAP
    if world.dumps:
        # Why it is saved, the lost master knew.
        job.after_dump, job.dump_until = ("the master was lost while the last step was being saved", True), now + DUMP_S
    elif world.repairs:
        job.repair_until = now + job.rules.repair_timeout_s
    for _ in range(will.restarts_used):
        job.budget.spend(now=now)
    known = {registered.node: registered for registered in will.members}
    lost: list[Action] = []
    for placement in world.placements:
        node = placement.node
        if node not in known or node in event.dead:
            job.absent[node] = event.dead.get(node, "it was lost before")
            lost.append(Tale(NodeLost(node, job.absent[node])))
            continue
        unknown = NodeStatus(NodePhase.RUNNING, world.generation)
        job.members[node] = Member(known[node], unknown, previous_rank=placement.group_rank, placed_in=world.generation)
        # The lost master may live, and goes on until it has heard nothing for a whole lease.
        job.leases.renew(node, now=now + job.rules.lease_s - job.rules.fence_s)
        job.awaited.add(node)
    return [Tale(moved), *lost]


def welcome(job: State, member: Member, event: NodeRegistered, *, now: float) -> list[Action]:
    """A node of an inherited world says how it is."""
    member.status = event.status
    member.ready_at = now if event.status.phase is NodePhase.READY else None
    job.awaited.discard(event.node)
    return note_start(job, member, now=now)


def conclude(job: State, *, now: float) -> list[Action]:
    """All nodes of an inherited world are known or gone: repair what is broken."""
    assert job.world is not None, "it was inherited"
    if job.awaited:
        return []
    members = [job.members[placement.node] for placement in job.world.placements if placement.node in job.members]
    called_off = [member for member in members if job.is_called_off(member)]
    if any(member.status.phase is not NodePhase.READY for member in called_off):
        # Nobody gets its ranks before its workers are gone.
        return []
    job.is_inheriting = False
    for member in members:
        if member.status.end_job is not None:
            return end(job, member.status.end_job, member.status.reason, now=now)
    symptoms = {node: f"node {node} is lost: {reason}" for node, reason in job.absent.items()}
    job.absent = {}
    symptoms |= {member.registered.node: unseat(member) for member in called_off}
    if not symptoms:
        unknown = NodeStatus(NodePhase.RUNNING, job.generation)
        return [action for member in members for action in judge(job, member, unknown, now=now)]
    *others, last = sorted(symptoms)
    job.vacant |= set(others)
    actions = face_loss(job, last, "; ".join(symptoms[node] for node in (*others, last)), now=now)
    job.blame_worker = False
    return actions


def is_in_doubt(job: State, event: TimePassed) -> bool:
    """Whether it has yet to be seen if so many are silent that they may have elected another master: until then the
    ranks of the first of them are not given away."""
    if not event.silent or not job.deputies():
        return False
    known = (job.unheard | set(event.silent)) & set(job.electorate)
    feared = known | set(event.quiet) & set(job.electorate)
    return 2 * len(known) <= len(job.electorate) < 2 * len(feared)


def isolate(job: State, silent: tuple[str, ...], *, now: float) -> list[Action]:
    """Stop, or do not start again, if so many are silent that they may have elected another master."""
    if job.world is None:
        return []
    job.unheard |= set(silent) & set(job.electorate)
    if not job.deputies() or 2 * len(job.unheard) <= len(job.electorate):
        return []
    job.quorum = frozenset(job.electorate)
    if job.phase is not Phase.RUNNING:
        return []
    record = Isolated(job.generation, tuple(sorted(job.unheard)), len(job.electorate))
    return halt(job, record, now=now, at_once=True)


def establish(job: State) -> None:
    """A world counts once most of its nodes know of it: until then they would elect by the one before."""
    if job.world is None or job.established >= job.generation:
        return
    nodes = [placement.node for placement in job.world.placements]
    aware = [n for n in nodes if n in job.members and job.members[n].status.generation >= job.generation]
    if 2 * len(aware) > len(nodes):
        job.electorate, job.established, job.unheard = tuple(nodes), job.generation, set()
