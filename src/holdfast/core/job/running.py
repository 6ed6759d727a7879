"""A world that runs: is it repaired, is it done, and could it grow?"""

from __future__ import annotations

from holdfast.core.ids import Outcome
from holdfast.core.job.dumping import end_dump
from holdfast.core.job.ending import finish, resize
from holdfast.core.job.events import Action
from holdfast.core.job.incidents import close_incident, open_incident, publish_repair
from holdfast.core.job.losses import fill
from holdfast.core.job.state import State
from holdfast.core.recovery.ladder import Plan
from holdfast.spec.strategy import Strategy


def settle(job: State, *, now: float) -> list[Action]:
    assert job.world is not None, "a running job has a world"
    if job.vacant:
        job.grow_at = None
        return fill(job, now=now)
    nodes = [placement.node for placement in job.world.placements]
    gets_on = all(node in job.committed or node in job.succeeded for node in nodes)
    if job.after_dump is not None and gets_on:
        return end_dump(job, "", now=now)
    if gets_on:
        job.repair_until = None
    if job.incident is not None and gets_on:
        timings = max((status.timings_ms for status in job.placed()), key=lambda t: sum(t.values()), default={})
        closed = close_incident(job, "repaired", now=now, timings_ms=timings)
        job.failed_at, job.in_a_row = None, 0
        return [*closed, *settle(job, now=now)]
    if all(node in job.succeeded for node in nodes):
        return finish(job, Outcome(0, "every worker ended with 0"))
    ready = job.spares()
    if not ready or len(nodes) >= job.rules.max_nodes or job.succeeded or job.incident is not None:
        job.grow_at = None
        return []
    if Strategy.ELASTIC_TRAINING in job.rules.strategies and job.can_take_in():
        job.grow_at = None
        return _take_in(job, nodes, [name for name in ready if job.members[name].is_prepared], now=now)
    if job.grow_at is None:
        job.grow_at = now + job.rules.last_call_s
    if now < job.grow_at:
        return []
    return resize(job, f"{', '.join(sorted(ready))} joined", now=now)


def _take_in(job: State, nodes: list[str], prepared: list[str], *, now: float) -> list[Action]:
    """The world with more nodes; nobody is stopped for it, and nobody waits for processes to start."""
    newcomers = prepared[: job.rules.max_nodes - len(nodes)]
    if not newcomers:
        return []
    plan = Plan(Strategy.ELASTIC_TRAINING, f"{len(nodes)} of {job.rules.max_nodes} nodes were training")
    opened = open_incident(job, f"{', '.join(sorted(newcomers))} joined", plan, now=now)
    return [*opened, *publish_repair(job, job.places([*nodes, *newcomers]), now=now)]
