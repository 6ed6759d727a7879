"""Workers are lost or failed a step, and their nodes live."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.core.faults import FaultKind, classify, find_root_cause
from holdfast.core.ids import StepFault, WorkerFailure
from holdfast.core.job.dumping import dump
from holdfast.core.job.ending import fail
from holdfast.core.job.events import Action
from holdfast.core.job.incidents import open_incident, publish_repair
from holdfast.core.job.losses import face_loss
from holdfast.core.job.state import Member, State
from holdfast.core.recovery import ladder
from holdfast.core.recovery.ladder import Plan, Situation
from holdfast.spec.strategy import Strategy

SETTLE_S = 0.3
"""A worker that lost a peer is believed to be the only one hurt after so long without news of a loss."""


def face(job: State, member: Member, *, now: float) -> list[Action]:
    """Workers are lost or failed a step, and others live: repair the world, or stop it."""
    if job.vacant:
        # They are all repaired together, once the world is whole again.
        return []
    status = member.status
    only_communication = not status.failures and all(fault.kind == "communication" for fault in status.faults)
    if only_communication and not job.is_watching() and not job.rules.replaces:
        # A peer is gone, and nobody wants to know.
        return []
    if only_communication and job.settle_until is None:
        # Whoever lost a peer says so before the loss itself is known; give the loss time to show.
        job.settle_until = now + _settle_s(job)
    if only_communication and job.settle_until is not None and now < job.settle_until:
        return []
    return repair(job, now=now)


def _settle_s(job: State) -> float:
    """Where nothing is repaired there is no hurry, but the one that was lost has to be named; silence may tell it,
    unless all others have ended well."""
    assert job.world is not None, "a running job has a world"
    rules = job.rules
    can_be_lost = len(job.world.placements) - len(job.succeeded) > 1
    is_soon = rules.is_launched or rules.replaces or math.isinf(rules.lease_s) or not can_be_lost
    return SETTLE_S if is_soon else rules.lease_s


def repair(job: State, *, now: float) -> list[Action]:
    assert job.world is not None, "a running job has a world"
    job.settle_until = None
    if any(job.is_called_off(job.members[p.node]) for p in job.world.placements if p.node in job.members):
        # Its workers are about to be gone: then that is repaired too.
        return []
    placed = job.placed()
    failures = [failure for status in placed for failure in status.failures]
    faults = [fault for status in placed for fault in status.faults]
    root, _ = find_root_cause(failures)
    fault = _worst(faults)
    symptom = f"rank {root.rank} {classify(root).evidence}" if root else _describe(fault)
    if root is None and job.succeeded:
        symptom += f"; {', '.join(sorted(job.succeeded))} had ended with 0 by then"
    if (gone := job.gone()) and not job.rules.is_launched:
        # They had ended well, and nobody missed them until now.
        return face_loss(job, gone[0], symptom, now=now)
    signature = _signature(root, fault)
    repeated = signature is not None and signature == job.last_signature
    situation = Situation(
        num_lost=len(failures),
        num_alive=job.num_alive(placed),
        all_attached=len(placed) == len(job.world.placements) and all(map(job.can_move, placed)),
        repeated=repeated,
        repairs_left=job.has_repairs_left(now=now),
        saves=any(status.saves for status in placed),
        retried=job.last_strategy is Strategy.RETRY,
    )
    plan = ladder.choose(situation, allowed=job.rules.strategies)
    job.last_signature, job.last_strategy = signature, plan.strategy
    if plan.strategy in (Strategy.DUMP, Strategy.EXIT):
        return give_up(job, symptom, plan, now=now)
    return [*open_incident(job, symptom, plan, now=now), *publish_repair(job, job.world.placements, now=now)]


def give_up_repair(job: State, *, now: float) -> list[Action]:
    """A repaired world has not committed a step in time: nothing finer would."""
    assert job.world is not None, "a running job has a world"
    placed, limit_s = job.placed(), job.rules.repair_timeout_s
    situation = Situation(
        num_lost=0,
        num_alive=job.num_alive(placed),
        all_attached=len(placed) == len(job.world.placements) and all(map(job.can_move, placed)),
        repeated=False,
        repairs_left=job.has_repairs_left(now=now),
        saves=any(status.saves for status in placed),
        overdue_s=limit_s,
    )
    plan = ladder.choose(situation, allowed=job.rules.strategies)
    return give_up(job, f"generation {job.generation} was not repaired within {limit_s:g} s", plan, now=now)


def give_up(job: State, symptom: str, plan: Plan, *, now: float) -> list[Action]:
    """Stop the world, after its last step is saved if that is what was chosen."""
    assert job.world is not None, "a running job has a world"
    if plan.strategy is Strategy.DUMP:
        return dump(job, symptom, plan, [p.node for p in job.world.placements], now=now)
    return fail(job, f"{symptom} ({plan.reason})", now=now, restartable=plan.restartable)


def symptom_of(member: Member) -> str:
    status = member.status
    if status.failures:
        failure = status.failures[0]
        return f"rank {failure.rank} {classify(failure).evidence}"
    if status.faults:
        return _describe(_worst(status.faults))
    return f"node {member.registered.node} stopped its workers: {status.reason or 'no reason given'}"


def _worst(faults: Sequence[StepFault]) -> StepFault | None:
    """Errors of communication are mostly echoes of another fault."""
    return min(faults, key=lambda fault: (fault.kind == "communication", fault.rank), default=None)


def _describe(fault: StepFault | None) -> str:
    assert fault is not None, "a broken node names a loss or a fault"
    headline = fault.error.strip().splitlines()[-1][:160] if fault.error.strip() else fault.kind
    where = f"failed step {fault.step}" if fault.step >= 0 else "failed outside of its steps"
    return f"rank {fault.rank} {where} ({fault.kind}): {headline}"


def _signature(root: WorkerFailure | None, fault: StepFault | None) -> tuple[int, str] | None:
    """What would make a second fault the same as the first: the step, and the exception's own words.

    A bug raises on whichever rank comes to it first; a crash or a hang is the same only on the same rank. A newcomer
    shows step 0 until it comes to a step, so a crash there is not known to be at a step at all.
    """
    if root is not None and root.error:
        step = -1 if root.step is None else root.step
        if classify(root).kind is FaultKind.EXCEPTION:
            return step, root.error.strip().splitlines()[-1]
        return (step, f"rank {root.rank} {classify(root).evidence}") if step > 0 else None
    if root is None and fault is not None and fault.kind != "communication":
        return fault.step, fault.error.strip().splitlines()[-1] if fault.error.strip() else fault.kind
    return None
