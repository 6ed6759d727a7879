"""The account of one repair, and the world it leads to."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.ids import Placement
from holdfast.core.job.events import Action, Tale
from holdfast.core.job.state import State
from holdfast.core.job.wishes import bequeath, remind_all
from holdfast.core.recovery.ladder import Plan
from holdfast.core.story import IncidentClosed, IncidentOpened
from holdfast.spec.strategy import Strategy


def open_incident(job: State, symptom: str, plan: Plan, *, now: float) -> list[Action]:
    job.repairs.spend(now=now)
    job.num_incidents += 1
    # Where somebody starts another process for each one that is lost, that is not what has been tried in vain.
    is_replaced_by_hand = plan.strategy is Strategy.RECOVER and not job.rules.is_launched
    job.in_a_row = 0 if is_replaced_by_hand else job.in_a_row + 1
    closed = close_incident(job, "followed", now=now)
    job.failed_at = now
    job.incident = IncidentOpened(job.num_incidents, job.next_generation, symptom, plan.strategy.value, plan.reason)
    return [*closed, Tale(job.incident)]


def close_incident(job: State, verdict: str, *, now: float, timings_ms: dict[str, float] | None = None) -> list[Action]:
    incident, job.incident = job.incident, None
    job.repair_until = None
    if incident is None:
        return []
    total_ms = 0.0 if job.failed_at is None else (now - job.failed_at) * 1000
    return [Tale(IncidentClosed(incident.number, verdict, total_ms, timings_ms or {}))]


def publish_repair(job: State, placements: tuple[Placement, ...], *, now: float, dumps: bool = False) -> list[Action]:
    """The world again, with these nodes; who lives in it goes on."""
    assert job.world is not None, "a running job has a world"
    job.advance_generation()
    job.waiting_reason, job.settle_until = "", None
    # How long a step may take to be saved is another matter.
    job.repair_until = None if dumps else now + job.rules.repair_timeout_s
    store = job.store_of(job.world.store)
    if placements[0].node != job.world.placements[0].node:
        store = job.store_of(job.members[placements[0].node].registered.store)
    job.world = replace(
        job.world,
        generation=job.generation,
        placements=placements,
        store=store,
        repairs=True,
        dumps=dumps,
    )
    for placement in placements:
        member = job.members[placement.node]
        member.previous_rank, member.placed_in = placement.group_rank, job.generation
    job.started, job.committed, job.failures = set(), set(), []
    # Whoever has a place is needed once more.
    job.succeeded -= {placement.node for placement in placements}
    return [*remind_all(job), *bequeath(job)]
