"""From nodes that are ready to a world."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.ids import Outcome, World
from holdfast.core.job.checking import check_newcomers
from holdfast.core.job.ending import finish, with_root_cause
from holdfast.core.job.events import Action, Tale
from holdfast.core.job.state import Phase, State
from holdfast.core.job.wishes import bequeath, remind_all
from holdfast.core.rendezvous import Candidate, Decision, choose, decide_world, describe_absence, place, seat_by_table
from holdfast.core.story import RankTableIgnored, Waiting, WorldFormed

COUNT_PACE_S = 1.0
"""From one word about how many are here to the next: each goes to all of them, and they come one by one."""


def gather(job: State, *, now: float) -> list[Action]:
    candidates = [member.candidate for member in job.usable()]
    decision, actions = _decide(job, candidates, now=now), []
    if decision.members is not None and job.rules.network_check:
        actions = check_newcomers(job, now=now)
        decision = _decide_among_fit(job, now=now)
    job.decide_at = decision.wake_at
    if decision.members is not None:
        return actions + _publish(job, decision.members, decision.reason)
    if job.gather_until is not None and now >= job.gather_until:
        waited = f"{job.rules.join_timeout_s:g} s"
        reason = f"no world within {waited}: {decision.reason}{_absence(job, candidates)}"
        return finish(job, with_root_cause(job, Outcome(1, reason)))
    return actions + _tell_of_waiting(job, decision, now=now)


def _tell_of_waiting(job: State, decision: Decision, *, now: float) -> list[Action]:
    if decision.reason != job.waiting_reason:
        job.waiting_reason, job.is_waiting_told = decision.reason, False
    if job.is_waiting_told:
        return []
    if decision.is_count and now < job.counted_at + COUNT_PACE_S:
        told_at = job.counted_at + COUNT_PACE_S
        job.decide_at = told_at if job.decide_at is None else min(told_at, job.decide_at)
        return []
    job.is_waiting_told = True
    if decision.is_count:
        job.counted_at = now
    return [Tale(Waiting(decision.reason))]


def _decide(job: State, candidates: list[Candidate], *, now: float) -> Decision:
    decision = decide_world(candidates, first=job.generation == 0, now=now, rules=job.rules)
    return _await_quorum(job, _await_servers(job, decision))


def _decide_among_fit(job: State, *, now: float) -> Decision:
    """The same with nodes that have passed their check."""
    check = job.health.check
    if check is not None:
        return Decision(None, f"checking {len(check.subjects)} node{'s' * (len(check.subjects) != 1)}")
    fit = [member.candidate for member in job.usable() if job.is_fit(member)]
    decision = _decide(job, fit, now=now)
    undecided = [member.candidate for member in job.usable() if member.nonce in job.health.unresolved]
    if decision.members is not None or not undecided:
        return decision
    # Each of them works alone, so that one of them can be used.
    with_one = _decide(job, [*fit, undecided[0]], now=now)
    names = ", ".join(candidate.node for candidate in undecided)
    reason = f"{decision.reason}; {names} do not reach each other, and it takes another node to tell whose fault it is"
    return with_one if with_one.members is not None else replace(decision, reason=reason, is_count=False)


def _seat_servers(job: State) -> tuple[str, ...]:
    servers = [member.candidate for member in job.of_role(is_server=True)]
    return tuple(server.node for server in choose(servers, job.rules.num_servers, rules=job.rules))


def _await_servers(job: State, decision: Decision) -> Decision:
    here, expected = len(job.of_role(is_server=True)), job.rules.num_servers
    if here >= expected:
        return decision
    reason = f"{decision.reason}, {here} of {expected} servers"
    return replace(decision, members=None, reason=reason, is_count=True)


def _await_quorum(job: State, decision: Decision) -> Decision:
    here, expected = len(job.quorum & set(job.members)), len(job.quorum)
    if 2 * here >= expected:
        return decision
    reason = f"{here} of {expected} nodes of the last world are here, and the others may go on without them"
    return replace(decision, members=None, reason=reason)


def _absence(job: State, candidates: list[Candidate]) -> str:
    parts = []
    if len(candidates) < job.rules.min_nodes:
        parts.append(describe_absence(candidates, expected=job.rules.min_nodes))
    servers = [member.candidate for member in job.of_role(is_server=True)]
    if len(servers) < job.rules.num_servers:
        parts.append(f"servers {describe_absence(servers, expected=job.rules.num_servers)}")
    return f" ({'; '.join(parts)})" if parts else ""


def _publish(job: State, members: tuple[Candidate, ...], reason: str) -> list[Action]:
    if job.generation > 0:
        job.restart_count += 1
    job.advance_generation()
    job.phase = Phase.RUNNING
    job.waiting_reason = ""
    job.gather_until = job.decide_at = None
    job.failures, job.succeeded, job.started, job.pids = [], set(), set(), {}
    job.blame_worker = False
    ignored = ""
    if job.rules.rank_table:
        members, ignored = seat_by_table(members, job.rules.rank_table)
    servers = _seat_servers(job) if job.world is None else job.world.servers
    store = job.store_of(members[0].store)
    job.world = World(job.generation, job.restart_count, place(members), store, servers=servers)
    for placement in job.world.placements:
        member = job.members[placement.node]
        member.previous_rank, member.placed_in = placement.group_rank, job.generation
    formed = WorldFormed(job.generation, job.restart_count, job.world.size, job.world.placements, reason)
    warnings: list[Action] = [Tale(RankTableIgnored(ignored))] if ignored else []
    return [*warnings, Tale(formed), *remind_all(job), *bequeath(job)]
