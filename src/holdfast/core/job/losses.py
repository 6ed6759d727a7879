"""A node is lost or leaves: who takes its ranks."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.core.ids import NodePhase
from holdfast.core.job.dumping import dump, end_dump
from holdfast.core.job.ending import fail, resize
from holdfast.core.job.events import Action, Tale
from holdfast.core.job.incidents import open_incident, publish_repair
from holdfast.core.job.state import Member, Phase, State
from holdfast.core.recovery import ladder
from holdfast.core.recovery.ladder import Situation
from holdfast.core.story import NodeLost, Waiting
from holdfast.spec.strategy import Strategy

ENDED_WELL = "it had ended with 0"


def lose(job: State, node: str, reason: str, *, now: float) -> list[Action]:
    """A node is gone for good."""
    member = job.members[node]
    job.remove(member)
    if job.is_current(member) and node in job.succeeded and not job.rules.is_launched:
        reason = ENDED_WELL
    actions: list[Action] = [Tale(NodeLost(node, reason))]
    if job.is_inheriting:
        job.awaited.discard(node)
        job.absent[node] = reason
        return actions
    if job.phase is Phase.RUNNING and job.is_current(member) and node not in job.succeeded:
        actions += face_loss(job, node, f"node {node} is lost: {reason}", now=now)
        job.blame_worker = False
    elif job.phase is Phase.RUNNING and member.registered.is_server and not job.rules.replaces:
        actions += fail(job, f"node {node} is lost: {reason}", now=now)
        job.blame_worker = False
    return actions


def lose_all(job: State, nodes: tuple[str, ...], reason: str, *, now: float) -> list[Action]:
    """Several nodes at once: none of them is given a place in a world without the others."""
    if job.phase is Phase.RUNNING and not job.is_inheriting:
        job.vacant |= {node for node in nodes if job.is_current(job.members[node]) and node not in job.succeeded}
    return [action for node in nodes for action in lose(job, node, reason, now=now)]


def let_go(job: State, member: Member, *, now: float) -> list[Action]:
    """A node is on its way out."""
    node, reason = member.registered.node, member.status.reason
    held = job.phase is Phase.RUNNING and job.is_current(member) and node not in job.succeeded
    actions: list[Action] = []
    if member.status.phase is NodePhase.LEFT:
        job.remove(member)
        actions.append(Tale(NodeLost(node, reason)))
    if not held or node in job.vacant:
        return actions
    return actions + face_loss(job, node, f"node {node} left: {reason}", now=now, leaving=True)


def unseat(member: Member) -> str:
    """Take its place from a node that has stopped its workers; as what that is seen. It may be given a place again."""
    member.placed_in = None
    return f"node {member.registered.node} stopped its workers: {member.status.reason}"


def face_loss(
    job: State, node: str, symptom: str, *, now: float, leaving: bool = False, waited_s: float = 0.0
) -> list[Action]:
    """Another node takes the ranks of a lost one, or the others go on without it; else all start again."""
    assert job.world is not None, "a running job has a world"
    if job.after_dump is not None:
        return end_dump(job, f"the last step was not saved: {symptom}", now=now)
    job.settle_until = None
    job.vacant |= {node, *job.gone()}
    left = [p.node for p in job.world.placements if p.node not in job.vacant]
    statuses = [job.members[name].status for name in left if name in job.members]
    # Whoever may not go on in place has to start again: for a lost node that is put off until nobody comes for it.
    at_once = leaving or Strategy.ELASTIC_TRAINING in job.rules.strategies
    enough = at_once and len(left) >= job.rules.min_nodes and not _has_takers(job)
    situation = Situation(
        num_lost=sum(p.num_workers for p in job.world.placements if p.node in job.vacant),
        num_alive=job.num_alive(statuses),
        all_attached=len(statuses) == len(left) and all(map(job.can_move, statuses)),
        repeated=False,
        repairs_left=job.has_repairs_left(now=now),
        saves=any(status.saves for status in statuses),
        nodes_lost=len(job.vacant),
        enough_nodes=len(left) if enough else 0,
        waited_s=waited_s,
    )
    plan = ladder.choose(situation, allowed=job.rules.strategies)
    if plan.strategy is not Strategy.RECOVER:
        job.vacant, job.vacant_until = set(), None
    # Whoever has waited for nodes in vain does not wait for them again.
    plan = replace(plan, restartable=not waited_s or job.has_enough_nodes())
    if plan.strategy is Strategy.EXIT:
        # To scripts without the SDK nothing finer is ever done, and nobody wonders why.
        is_plain = situation.num_alive > 0 and not any(status.attached for status in statuses)
        reason = symptom if is_plain else f"{symptom} ({plan.reason})"
        return resize(job, reason, now=now) if leaving else fail(job, reason, now=now, restartable=plan.restartable)
    if plan.strategy is Strategy.DUMP:
        return dump(job, symptom, plan, left, now=now)
    opened = open_incident(job, symptom, plan, now=now)
    if plan.strategy is Strategy.ELASTIC_TRAINING:
        return [*opened, *publish_repair(job, job.places(left), now=now)]
    job.vacant_until = now + job.rules.join_timeout_s
    return opened


def _has_takers(job: State) -> bool:
    """Whether nodes are there for whom the others, though they are enough, should wait."""
    if Strategy.ELASTIC_TRAINING not in job.rules.strategies:
        return bool(_find_takers(job, job.spares()))
    # One that still imports and builds is taken in when it has done so: meanwhile the others go on.
    prepared = [name for name in job.spares() if job.members[name].is_prepared]
    return len(_find_takers(job, prepared)) == len(job.vacant)


def _find_takers(job: State, spares: list[str]) -> dict[str, str]:
    """Who would take the ranks of which lost node: one with as many workers, if possible the same node again."""
    assert job.world is not None, "a running job has a world"
    takers: dict[str, str] = {}
    vacant = [placement for placement in job.world.placements if placement.node in job.vacant]
    # Those who have come back are seated first, so that nobody else sits there.
    for placement in sorted(vacant, key=lambda each: each.node not in spares):
        free = [name for name in spares if name not in takers.values()]
        fit = [name for name in free if job.members[name].registered.num_workers == placement.num_workers]
        if fit:
            takers[placement.node] = placement.node if placement.node in fit else fit[0]
    return takers


def fill(job: State, *, now: float) -> list[Action]:
    """Give the ranks of lost nodes to nodes that are ready, all at once."""
    assert job.world is not None, "a running job has a world"
    assert job.vacant_until is not None, "nobody is waited for without end"
    job.vacant |= {*job.gone()}
    is_over, limit_s = now >= job.vacant_until, job.rules.join_timeout_s
    patience = f", for up to {limit_s:g} s" if limit_s < math.inf else ""
    leaving = [name for name in sorted(job.vacant) if name in job.members and job.members[name].is_leaving]
    if leaving and not is_over:
        # Nobody gets its ranks before its workers are gone.
        return _await(job, f"{', '.join(leaving)} to leave{patience}")
    told: list[Action] = []
    for name in leaving:
        job.remove(job.members[name])
        told.append(Tale(NodeLost(name, f"did not leave within {limit_s:g} s")))
    takers, names = _find_takers(job, job.spares()), ", ".join(sorted(job.vacant))
    if len(takers) == len(job.vacant):
        seats = [
            (placement, job.members[takers.get(placement.node, placement.node)].registered)
            for placement in job.world.placements
        ]
        job.vacant, job.vacant_until = set(), None
        placements = [replace(old, node=new.node, host=new.host, machine=new.machine) for old, new in seats]
        return [*told, *publish_repair(job, tuple(placements), now=now)]
    here = [p.node for p in job.world.placements if p.node not in job.vacant] + list(takers.values())
    if takers and Strategy.ELASTIC_TRAINING in job.rules.strategies and len(here) >= job.rules.min_nodes:
        # Not all who were lost, but enough to go on.
        job.vacant, job.vacant_until = set(), None
        return [*told, *publish_repair(job, job.places(here), now=now)]
    if not is_over:
        return _await(job, f"a node in place of {names}{patience}")
    symptom = f"no node took the place of {names} within {limit_s:g} s"
    told += face_loss(job, min(job.vacant), symptom, now=now, waited_s=limit_s)
    job.blame_worker = False
    return told


def _await(job: State, reason: str) -> list[Action]:
    if reason == job.waiting_reason:
        return []
    job.waiting_reason = reason
    return [Tale(Waiting(reason))]
