"""The last step is saved by those who live, before all are stopped."""

from __future__ import annotations

from holdfast.core.job.ending import fail
from holdfast.core.job.events import Action
from holdfast.core.job.incidents import close_incident, open_incident, publish_repair
from holdfast.core.job.state import State
from holdfast.core.recovery.ladder import Plan

DUMP_S = 600.0
"""For the last step to be saved; afterwards the workers are stopped without it."""


def dump(job: State, symptom: str, plan: Plan, nodes: list[str], *, now: float) -> list[Action]:
    """Have these nodes save the last step, before all are stopped."""
    job.after_dump, job.dump_until = (symptom, plan.restartable), now + DUMP_S
    return [*open_incident(job, symptom, plan, now=now), *publish_repair(job, job.places(nodes), now=now, dumps=True)]


def end_dump(job: State, trouble: str, *, now: float) -> list[Action]:
    assert job.after_dump is not None, "a step is being saved"
    symptom, restartable = job.after_dump
    closed = close_incident(job, "failed" if trouble else "dumped", now=now)
    reason = f"{symptom}; {trouble or 'the last step was saved'}"
    return [*closed, *fail(job, reason, now=now, restartable=restartable)]
