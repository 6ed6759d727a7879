"""Nodes are checked before they are used, where the job's rules say so."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.health.check import NodeCheck, Site
from holdfast.core.health.results import ALL_REDUCE, COMPUTE, LOOPBACK, MEMORY, CheckResult
from holdfast.core.health.story import CheckRound, CheckRow, NodeUnfit
from holdfast.core.health.verdicts import Fitness, Verdict
from holdfast.core.ids import NodePhase, NodeStatus, Outcome
from holdfast.core.job.ending import finish
from holdfast.core.job.events import Action, Tale
from holdfast.core.job.state import Member, Phase, State
from holdfast.core.job.wishes import remind, remind_all


def check_newcomers(job: State, *, now: float) -> list[Action]:
    """Begin a check of the nodes that are ready and have not been checked, unless one is under way."""
    health = job.health
    if not job.rules.network_check or health.check is not None:
        return []
    waiting = [member for member in job.usable() if _is_free(job, member) and not job.is_fit(member)]
    if all(member.nonce in health.unresolved for member in waiting):
        return []
    fit = [member for member in job.usable() if job.is_fit(member) and not member.is_leaving]
    # Who has no place in the world is not disturbed by helping. The last never leads: it may serve the workers' store.
    fit.sort(key=lambda member: (job.is_current(member), member.previous_rank == 0, member.registered.node))
    health.num_checks += 1
    health.check = NodeCheck(
        health.num_checks,
        subjects={member.registered.node: _site(member) for member in waiting},
        helpers={member.registered.node: _site(member) for member in fit},
        now=now,
    )
    # Whoever is missing when it is over can come then: the time to wait for nodes begins again.
    job.gather_until = job.decide_at = None
    return remind_all(job)


def note_check(job: State, member: Member, old: NodeStatus) -> list[Action]:
    """A node has news of a check: its partners may have waited for that."""
    check, result, node = job.health.check, member.status.check, member.registered.node
    if check is None or result is None or result == old.check:
        return []
    check.note(node, result)
    return [action for peer in check.peers_of(node) if peer in job.members for action in remind(job, job.members[peer])]


def advance_check(job: State, *, now: float) -> list[Action]:
    """End the round of a check that is over; what follows is the second round, or a verdict."""
    check = job.health.check
    if check is None or not check.is_round_over(now=now):
        return []
    verdicts = check.end_round(now=now)
    told: list[Action] = [Tale(_table(job, check, verdicts))]
    if not check.is_decided(verdicts):
        check.begin_second_round(verdicts, now=now)
        return [*told, *remind_all(job)]
    job.health.check = None
    if job.phase is Phase.GATHERING:
        job.gather_until = now + job.rules.join_timeout_s
    for node, verdict in verdicts.items():
        told += _apply(job, check, job.members[node], verdict)
    return told + remind_all(job)


def _apply(job: State, check: NodeCheck, member: Member, verdict: Verdict) -> list[Action]:
    node, health = member.registered.node, job.health
    health.unresolved.discard(member.nonce)
    excluded = verdict.fitness is Fitness.FAILED or (verdict.fitness is Fitness.SLOW and job.rules.exclude_straggler)
    if verdict.fitness is Fitness.UNRESOLVED:
        health.unresolved.add(member.nonce)
    elif not excluded:
        health.fit.add(member.nonce)
    if verdict.fitness is Fitness.FIT:
        return []
    decision = "refused" if excluded else "undecided" if verdict.fitness is Fitness.UNRESOLVED else "used"
    unfit = NodeUnfit(node, check.check_id, verdict.fitness.value, verdict.metric, verdict.reason, decision)
    told: list[Action] = [Tale(unfit)]
    if excluded:
        health.excluded[member.nonce] = unfit.why
        if job.sole_nonce is not None:
            return told + finish(job, Outcome(1, str(unfit)))
    return told


def _is_free(job: State, member: Member) -> bool:
    placed = job.phase is Phase.RUNNING and job.is_current(member)
    return member.ready_at is not None and member.status.phase is NodePhase.READY and not placed


def _site(member: Member) -> Site:
    return Site(member.registered.store, member.registered.machine)


def _table(job: State, check: NodeCheck, verdicts: dict[str, Verdict]) -> CheckRound:
    rows = [
        replace(_row(check, node, result, verdicts.get(node)), rank=_rank(job.members.get(node)))
        for node, result in sorted(check.results.items())
    ]
    return CheckRound(check.check_id, check.round, tuple(rows))


def _rank(member: Member | None) -> int | None:
    if member is None:
        return None
    return member.previous_rank if member.registered.wanted_rank is None else member.registered.wanted_rank


def _row(check: NodeCheck, node: str, result: CheckResult, verdict: Verdict | None) -> CheckRow:
    times = [pair.timing.ms for pair in result.pairs if pair.timing is not None]
    shown = {name: timing.ms for name, timing in result.timings.items()}
    if times:
        shown[ALL_REDUCE] = min(times)
    error = result.error or next((pair.error for pair in result.pairs if pair.error), "")
    said = "helps" if verdict is None else verdict.fitness.value
    ordered = {name: round(shown[name], 3) for name in (COMPUTE, MEMORY, LOOPBACK, ALL_REDUCE) if name in shown}
    return CheckRow(node, tuple(check.peers_of(node)), ordered, said, error)
