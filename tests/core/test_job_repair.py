"""Repairing a world in place: one incident after the other, each closed with a verdict, and an end to trying."""

from __future__ import annotations

import signal

import pytest
from driving import Master, failure, orders, rules, tales

from holdfast.core import job
from holdfast.core.ids import NodePhase, Run, StepFault, WorkerFailure
from holdfast.core.job import MAX_IN_A_ROW
from holdfast.core.story import IncidentClosed, IncidentOpened, JobFinished
from holdfast.spec.strategy import Strategy

RUNNING, BROKEN = NodePhase.RUNNING, NodePhase.BROKEN
ONE_NODE = rules(min_nodes=1, max_nodes=1, strategies=tuple(Strategy), max_restarts=0, lease_s=1000.0)
PIDS = (10, 11)


@pytest.fixture
def master() -> Master:
    found = Master(ONE_NODE)
    found.form("a")
    found.report("a", RUNNING, 1, pids=PIDS, attached=True, committed=1)
    return found


def lose(master: Master, lost: WorkerFailure) -> list[job.Action]:
    pids = tuple(0 if rank == lost.rank else pid for rank, pid in enumerate(PIDS))
    return master.report("a", BROKEN, master.job.generation, pids=pids, attached=True, failures=(lost,))


def trip(master: Master, fault: StepFault) -> list[job.Action]:
    return master.report("a", BROKEN, master.job.generation, pids=PIDS, attached=True, faults=(fault,))


def commit(master: Master) -> list[job.Action]:
    generation = master.job.generation
    return master.report("a", RUNNING, generation, pids=PIDS, attached=True, committed=generation)


def crash(rank: int, *, step: int, number: int = signal.SIGSEGV, error: str = "Fatal Python error") -> WorkerFailure:
    return failure(rank, code=None, signal=number, error=error, step=step)


def test_a_lost_worker_is_replaced_in_a_world_of_the_next_generation(master: Master):
    actions = lose(master, crash(1, step=5))
    opened = tales(actions, IncidentOpened)
    assert [(tale.number, tale.generation, tale.strategy) for tale in opened] == [(1, 2, "recover-in-place")]
    order = orders(actions)["a"]
    assert isinstance(order, Run)
    assert (order.world.generation, order.world.repairs) == (2, True)
    assert tales(commit(master), IncidentClosed)[0].verdict == "repaired"


def test_a_failed_step_without_a_loss_is_tried_again(master: Master):
    opened = tales(trip(master, StepFault(0, "a", 5, "memory", "MemoryDamaged: x")), IncidentOpened)
    assert [tale.strategy for tale in opened] == ["retry"]


def test_a_fault_during_a_repair_is_the_next_incident(master: Master):
    lose(master, crash(1, step=5))
    master.report("a", RUNNING, 2, pids=PIDS, attached=True)
    actions = lose(master, crash(0, step=5))
    assert [(tale.number, tale.verdict) for tale in tales(actions, IncidentClosed)] == [(1, "followed")]
    assert [tale.number for tale in tales(actions, IncidentOpened)] == [2]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failure(0, error="ValueError: bug", step=5), failure(1, error="ValueError: bug", step=5)),
        (crash(1, step=5), crash(1, step=5)),
        (crash(1, step=5, number=9, error="hung: rank 1"), crash(1, step=5, number=9, error="hung: rank 1")),
    ],
)
def test_the_same_fault_at_the_same_step_is_the_scripts_own(
    master: Master, first: WorkerFailure, second: WorkerFailure
):
    lose(master, first)
    master.report("a", RUNNING, 2, pids=PIDS, attached=True)
    actions = lose(master, second)
    assert tales(actions, IncidentOpened) == []
    assert "the script is at fault" in str(actions)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failure(0, error="ValueError: bug", step=5), failure(0, error="ValueError: bug", step=6)),
        (failure(0, error="ValueError: bug", step=5), failure(0, error="ValueError: other", step=5)),
        (crash(0, step=5), crash(1, step=5)),
        (crash(0, step=5, number=9, error="hung: a\n  x"), crash(1, step=5, number=9, error="hung: b\n  x")),
        (crash(0, step=5, number=9, error=""), crash(0, step=5, number=9, error="")),
    ],
)
def test_another_fault_is_another_incident(master: Master, first: WorkerFailure, second: WorkerFailure):
    lose(master, first)
    master.report("a", RUNNING, 2, pids=PIDS, attached=True)
    assert [tale.number for tale in tales(lose(master, second), IncidentOpened)] == [2]


def test_repairs_that_never_lead_to_a_step_come_to_an_end(master: Master):
    for turn in range(MAX_IN_A_ROW):
        assert tales(lose(master, crash(turn % 2, step=turn)), IncidentOpened)
        master.report("a", RUNNING, master.job.generation, pids=PIDS, attached=True)
    actions = lose(master, crash(0, step=99))
    assert tales(actions, IncidentOpened) == []
    assert "too many repairs" in str(actions)


def test_a_committed_step_makes_good_for_the_repairs_before_it(master: Master):
    for turn in range(MAX_IN_A_ROW + 5):
        assert tales(lose(master, crash(turn % 2, step=turn)), IncidentOpened), turn
        commit(master)


def test_when_no_worker_is_left_the_job_ends_and_says_why(master: Master):
    both = (crash(0, step=5), crash(1, step=5))
    master.report("a", BROKEN, 1, pids=(0, 0), attached=True, failures=both)
    actions = master.report("a", NodePhase.READY, 1, failures=both)
    finished = tales(actions, JobFinished)
    assert finished
    assert "no live worker holds the state" in finished[0].outcome.reason
