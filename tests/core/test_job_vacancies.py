"""Places that lost or leaving nodes have left empty: who is waited for, what is told meanwhile, and when that ends."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from driving import PIDS, Master, crash, die, failure, orders, park, placed, rules, tales, train

from holdfast.core import job
from holdfast.core.ids import NodePhase, StepFault
from holdfast.core.story import IncidentOpened, JobFinished, NodeLost, Resizing, Stopping, Waiting
from holdfast.spec.strategy import Strategy

ALL = tuple(Strategy)
WITHOUT_DUMP = tuple(strategy for strategy in Strategy if strategy is not Strategy.DUMP)
RECOVER = (Strategy.RECOVER, Strategy.EXIT)
LEAVING, LEFT = NodePhase.LEAVING, NodePhase.LEFT


def trained(*nodes: str, least: int, strategies: tuple[Strategy, ...] = WITHOUT_DUMP, **more: object) -> Master:
    master = Master(rules(min_nodes=least, max_nodes=len(nodes), strategies=strategies, lease_s=1e6, **more))
    master.form(*nodes)
    train(master, *nodes)
    return master


def leave(master: Master, node: str, phase: NodePhase = LEAVING) -> list[job.Action]:
    pids = PIDS if phase is LEAVING else ()
    return master.report(node, phase, master.job.generation, pids=pids, reason="SIGTERM received")


# --- who is waited for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
def test_only_a_spare_with_as_many_workers_is_worth_waiting_for(num_workers: int):
    master = trained("a", "b", "c", least=2)
    master.join("spare", num_workers=num_workers)
    park(master, "spare", num_workers)
    actions = die(master, "b")
    assert placed(actions, "a") == ({"a": 0, "c": 2} if num_workers == 1 else {"a": 0, "spare": 2, "c": 4})


def test_without_elastic_training_the_others_wait_for_a_node_though_they_are_enough():
    master = trained("a", "b", "c", least=2, strategies=RECOVER)
    master.join("odd", num_workers=1)
    assert [tale.strategy for tale in tales(die(master, "b"), IncidentOpened)] == ["recover"]
    assert master.job.phase is job.Phase.RUNNING
    assert placed(master.join("d"), "a") == {"a": 0, "d": 2, "c": 4}


# --- what is told ---------------------------------------------------------------------------------------------


def test_the_wait_for_a_node_is_told_once_and_forgotten_when_one_has_come():
    master = trained("a", "b", least=2)
    reason = "a node in place of b, for up to 100 s"
    assert tales(die(master, "b"), Waiting) == [Waiting(reason)]
    assert master.job.waiting_reason == reason
    assert tales(master.wait(50.0)) == []
    master.join("c")
    assert master.job.waiting_reason == ""


def test_nothing_is_said_of_a_wait_where_a_spare_takes_the_place_at_once():
    master = trained("a", "b", least=2)
    master.join("c")
    assert tales(die(master, "b"), Waiting) == []


def test_a_restart_after_a_lost_node_says_why_nothing_finer_was_done():
    master = trained("a", "b", "c", least=2, strategies=RECOVER)
    die(master, "b")
    stopping = tales(master.wait(master.now + 100.0), Stopping)
    assert [tale.decision for tale in stopping] == ["restart"]
    assert "no recover: no node came within 100 s" in stopping[0].reason
    master = trained("a", "b", "c", least=2, strategies=RECOVER)
    reason = tales(leave(master, "b"), Resizing)[0].reason
    assert reason.startswith("node b left: SIGTERM received (nothing finer applies; no recover: ")


# --- when it ends ---------------------------------------------------------------------------------------------


def test_a_job_that_has_waited_in_vain_ends_and_does_not_wait_again():
    master = trained("a", "b", least=2)
    die(master, "b")
    master.wait(master.now + 100.0)
    finished = tales(master.report("a", NodePhase.READY, 1), JobFinished)
    assert len(finished) == 1
    assert finished[0].outcome.exit_code == 1
    assert finished[0].outcome.root_cause is None
    assert finished[0].outcome.reason.startswith("no node took the place of b within 100 s (nothing finer applies; ")


def test_nor_does_one_that_has_saved_its_last_step_meanwhile():
    master = trained("a", "b", least=2, strategies=ALL)
    die(master, "b")
    master.wait(master.now + 100.0)
    train(master, "a")
    finished = tales(master.report("a", NodePhase.READY, master.job.generation), JobFinished)
    assert "the last step was saved" in finished[0].outcome.reason


def test_those_who_are_enough_to_start_again_do_so_after_a_wait_in_vain():
    master = trained("a", "b", least=2, strategies=RECOVER)
    die(master, "b")
    master.join("odd", num_workers=1)
    assert master.job.phase is job.Phase.RUNNING
    master.wait(master.now + 100.0)
    for node in ("a", "odd"):
        master.report(node, NodePhase.READY, 1)
    assert master.job.phase is job.Phase.RUNNING
    assert {placement.node for placement in master.job.world.placements} == {"a", "odd"}


@pytest.mark.parametrize("has_spare", [True, False])
def test_a_node_that_never_finishes_leaving_is_given_up(has_spare: bool):
    master = trained("a", "b", least=2)
    if has_spare:
        master.join("c")
    assert tales(leave(master, "b"), Waiting) == [Waiting("b to leave, for up to 100 s")]
    actions = master.wait(master.now + 100.0)
    assert tales(actions, NodeLost) == [NodeLost("b", "did not leave within 100 s")]
    deadline = master.job.next_deadline()
    assert deadline is None or deadline > master.now
    if has_spare:
        assert placed(actions, "a") == {"a": 0, "c": 2}
    else:
        assert "no node took the place of b" in tales(actions, Stopping)[0].reason


def test_a_worker_that_is_lost_during_the_wait_is_repaired_with_the_world():
    master = trained("a", "b", least=2)
    die(master, "b")
    master.report("a", NodePhase.BROKEN, 1, pids=(10, 0), attached=True, failures=(crash(1, step=5),))
    actions = master.join("c")
    assert placed(actions, "a") == {"a": 0, "c": 2}
    assert set(orders(actions)) == {"a", "c"}


# --- several things at once -----------------------------------------------------------------------------------


def test_nodes_that_fall_silent_together_are_all_left_out_of_the_world_that_saves_the_last_step():
    strategies = (Strategy.DUMP, Strategy.EXIT)
    master = trained("a", "b", "c", least=3, strategies=strategies)
    for node in ("b", "c"):
        master.job.leases.renew(node, now=-1e6)
    actions = master.wait(3.0)
    assert {tale.node for tale in tales(actions, NodeLost)} == {"b", "c"}
    assert [tale.strategy for tale in tales(actions, IncidentOpened)] == ["dump"]
    assert placed(actions, "a") == {"a": 0}


def test_they_go_on_as_soon_as_enough_are_there_though_not_in_the_place_of_all():
    master = trained("a", "b", "c", least=2)
    for node in ("b", "c"):
        master.job.leases.renew(node, now=-1e6)
    assert {tale.strategy for tale in tales(master.wait(3.0), IncidentOpened)} == {"recover"}
    assert placed(master.join("d"), "a") == {"a": 0, "d": 2}


def test_a_node_that_has_ended_and_left_while_another_was_awaited_is_replaced_too():
    master = trained("a", "b", "c", least=3)
    die(master, "b")
    master.report("c", NodePhase.SUCCEEDED, 1)
    leave(master, "c", LEFT)
    assert orders(master.join("d")) == {}
    assert placed(master.join("e"), "a") == {"a": 0, "d": 2, "e": 4}


@pytest.mark.parametrize("is_vacant", [True, False])
def test_a_last_call_for_newcomers_is_forgotten_when_the_world_is_repaired(is_vacant: bool):
    """Whether workers use the SDK is known only once they have started."""
    strategies = RECOVER if is_vacant else WITHOUT_DUMP
    master = Master(rules(min_nodes=2, max_nodes=3, strategies=strategies, lease_s=1e6))
    master.form("a", "b")
    master.join("c")
    master.now += 1.0
    assert master.job.next_deadline() == pytest.approx(master.now + 1.0)
    train(master, "a", "b")
    if is_vacant:
        leave(master, "b")
    master.wait(master.now + 1.0)
    deadline = master.job.next_deadline()
    assert master.job.phase is job.Phase.RUNNING
    assert deadline is None or deadline > master.now


def test_an_error_of_communication_is_settled_by_whatever_repairs_the_world_first():
    master = Master(rules(min_nodes=2, max_nodes=3, strategies=WITHOUT_DUMP, lease_s=1e6))
    master.form("a", "b")
    train(master, "a", "b")
    master.join("c")
    lost_peer = StepFault(0, "a", 5, "communication", "Connection closed by peer")
    master.report("a", NodePhase.BROKEN, 1, pids=PIDS, attached=True, faults=(lost_peer,))
    assert placed(park(master, "c"), "a") == {"a": 0, "b": 2, "c": 4}
    train(master, "a", "b", "c")
    assert tales(master.wait(master.now + 10.0)) == []


def test_nor_does_it_keep_a_job_busy_that_is_asked_to_end():
    master = trained("a", "b", least=2)
    lost_peer = StepFault(0, "a", 5, "communication", "Connection closed by peer")
    master.report("a", NodePhase.BROKEN, 1, pids=PIDS, attached=True, faults=(lost_peer,))
    master.handle(job.EndRequested(1, "asked to"))
    master.wait(master.now + 1.0)
    deadline = master.job.next_deadline()
    assert deadline is not None
    assert deadline > master.now


# --- nodes that have stopped their workers because they heard nobody ------------------------------------------------


def fall_silent(master: Master, node: str, phase: NodePhase = NodePhase.READY) -> list[job.Action]:
    """It has killed its workers, and is heard again before its lease is over: the master was away itself."""
    killed = crash(2, step=5, number=signal.SIGKILL, error="")
    failures = (replace(killed, node=node, stopped_by_us=True),)
    return master.report(node, phase, 1, failures=failures, called_off=True, reason="cut off from the master for 9 s")


def test_a_node_that_has_killed_its_workers_costs_nobody_else_theirs():
    master = trained("a", "b", "c", least=2)
    actions = fall_silent(master, "b")
    incident = tales(actions, IncidentOpened)[0]
    assert (incident.strategy, incident.symptom) == (
        "elastic-training",
        "node b stopped its workers: cut off from the master for 9 s",
    )
    assert placed(actions, "a") == {"a": 0, "c": 2}
    train(master, "a", "c")
    assert placed(park(master, "b"), "a") == {"a": 0, "c": 2, "b": 4}


def test_it_gets_its_place_back_where_the_others_need_it_once_its_workers_are_gone():
    master = trained("a", "b", least=2)
    assert tales(fall_silent(master, "b", NodePhase.DRAINING)) == []
    lost_peer = StepFault(0, "a", 5, "communication", "Connection closed by peer")
    master.report("a", NodePhase.BROKEN, 1, pids=PIDS, attached=True, faults=(lost_peer,))
    assert tales(master.wait(master.now + 10.0)) == []
    assert placed(fall_silent(master, "b"), "a") == {"a": 0, "b": 2}
    assert master.job.restart_count == 0


def test_scripts_without_the_sdk_start_again():
    master = trained("a", "b", least=2)
    for node in ("a", "b"):
        master.report(node, NodePhase.RUNNING, 1, pids=PIDS)
    assert [tale.decision for tale in tales(fall_silent(master, "b"), Stopping)] == ["restart"]


def test_a_worker_that_had_failed_before_is_still_to_blame_and_otherwise_nobody_is():
    bug = failure(2, node="b", error="ValueError: bug", step=5)
    for failures, root in (((bug,), bug), ((), None)):
        master = trained("a", "b", least=2, strategies=(Strategy.EXIT,), max_restarts=0)
        killed = replace(bug, rank=3, error="", exit_code=None, signal=signal.SIGKILL, stopped_by_us=True)
        master.report("b", NodePhase.READY, 1, failures=(*failures, killed), called_off=True, reason="cut off")
        finished = tales(master.report("a", NodePhase.READY, 1, called_off=True), JobFinished)
        assert finished[0].outcome.root_cause == root
