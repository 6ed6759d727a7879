"""Stopping a generation: to start another one, or to end the job."""

from __future__ import annotations

from holdfast.core.faults import exit_code_of, find_root_cause
from holdfast.core.ids import Outcome
from holdfast.core.job.events import Action, Tale
from holdfast.core.job.incidents import close_incident
from holdfast.core.job.state import Phase, State
from holdfast.core.job.wishes import remind_all
from holdfast.core.story import JobFinished, Record, Resizing, Stopping


def fail(job: State, symptom: str, *, now: float, restartable: bool = True) -> list[Action]:
    """The current generation cannot go on; another one follows if the budget allows it."""
    job.failed_at = now
    job.blame_worker = True
    if not restartable:
        return stop(job, symptom, then=Outcome(1, symptom), now=now)
    if job.budget.spend(now=now):
        return stop(job, symptom, then=None, now=now)
    limit = job.rules.max_restarts
    spent = job.rules.why_no_restarts if limit == 0 else f"{limit} of {limit} restarts are used"
    reason = f"{symptom}; {spent}"
    return stop(job, reason, then=Outcome(1, reason), now=now)


def stop(job: State, reason: str, *, then: Outcome | None, now: float) -> list[Action]:
    """Stop the current generation, then restart or finish."""
    used, limit = job.budget.used(now=now), job.rules.max_restarts
    decision = "finish" if then is not None else "restart" if job.rules.is_launched else "await"
    return halt(job, Stopping(job.generation, decision, reason, used, limit), then=then, now=now)


def resize(job: State, reason: str, *, now: float) -> list[Action]:
    job.failed_at = None
    return halt(job, Resizing(job.generation, reason), now=now)


def halt(job: State, record: Record, *, now: float, then: Outcome | None = None, at_once: bool = False) -> list[Action]:
    """Have every worker stopped, with or without grace; then there is another world, unless the job ends."""
    job.phase, job.stops_at_once = Phase.STOPPING, at_once
    job.is_inheriting = False
    job.vacant, job.vacant_until, job.waiting_reason = set(), None, ""
    job.settle_until = job.dump_until = job.after_dump = None
    job.outcome_after_stop = then
    job.stop_until = now + job.rules.stop_timeout_s
    job.gather_until = job.decide_at = job.grow_at = None
    return [*close_incident(job, "failed", now=now), Tale(record), *remind_all(job)]


def end(job: State, exit_code: int, reason: str, *, now: float) -> list[Action]:
    """Somebody wants the job to end: no worker is to blame."""
    if job.phase is Phase.FINISHED:
        return []
    job.is_ending = True
    job.blame_worker = False
    return stop(job, reason, then=Outcome(exit_code, reason), now=now)


def finish(job: State, outcome: Outcome) -> list[Action]:
    job.phase = Phase.FINISHED
    job.outcome = outcome
    return [Tale(JobFinished(outcome, job.restart_count)), *remind_all(job)]


def with_root_cause(job: State, outcome: Outcome) -> Outcome:
    """Name the worker to blame, if a worker is, and take its exit code."""
    root, consequences = find_root_cause(job.failures)
    if root is None or not job.blame_worker:
        return outcome
    reason = outcome.reason
    return Outcome(exit_code_of(root), reason, root, consequences)
