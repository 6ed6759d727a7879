"""Nodes that fall silent, do not stop, leave, come back or come late; and a master that does so itself."""

from __future__ import annotations

from dataclasses import replace

from driving import READY as JOINED
from driving import Master, die, failure, orders, ranks, rules, tales, train

from holdfast.core import job
from holdfast.core.ids import NodePhase, NodeStatus, Outcome, Run, Stop
from holdfast.core.story import JobFinished, MasterRestored, NodeLost, Resizing, Stopping, WorldFormed
from holdfast.spec.strategy import Strategy

DRAINING, LEAVING, LEFT = NodePhase.DRAINING, NodePhase.LEAVING, NodePhase.LEFT
READY, RUNNING, SUCCEEDED = NodePhase.READY, NodePhase.RUNNING, NodePhase.SUCCEEDED
LONG = rules(lease_s=1000.0)
STOP = Stop(1, "the group is being stopped")
WAITING = rules(strategies=(Strategy.RECOVER, Strategy.EXIT))


# --- silence --------------------------------------------------------------------------------------------------


def test_a_silent_node_is_lost_when_its_lease_runs_out_and_not_before():
    master = Master()
    master.form("a", "b", "c")
    master.now = 9.0
    master.beat("a", "b")
    assert master.job.next_deadline() == 10.0
    assert master.job.silent(now=9.9) == ()
    actions = master.wait(10.0)
    assert tales(actions, NodeLost) == [NodeLost("c", "silent for 10 s")]
    assert tales(actions, Stopping)[0].reason == "node c is lost: silent for 10 s"
    assert set(orders(actions)) == {"a", "b"}


def test_a_lost_node_is_replaced_by_a_spare_in_its_rank():
    master = Master(rules(max_nodes=2, lease_s=1000.0))
    master.form("a", "b")
    master.join("spare")
    master.handle(job.AgentDied("a", "a", "its agent is dead"))
    master.report("b", READY, 1)
    assert master.job.phase is job.Phase.STOPPING
    master.report("spare", READY, 1)
    assert ranks(master.job.world) == {"spare": 0, "b": 1}


def test_whoever_may_yet_receive_an_older_order_is_asked_to_forget_it_first():
    master = Master(LONG)
    master.join("a", "b", "c")
    master.run("b", "c")
    actions = master.report("c", DRAINING, 1)
    assert orders(actions)["a"] == Stop(1, "the group is being stopped")
    master.report("b", READY, 1)
    master.report("c", READY, 1)
    assert master.job.phase is job.Phase.STOPPING
    master.report("a", READY, 1)
    assert master.job.generation == 2


def test_the_loss_of_a_spare_stops_nobody():
    master = Master()
    master.form("a", "b", "c")
    master.join("spare")
    master.handle(job.AgentDied("spare", "spare", "its agent is dead"))
    assert master.job.phase is job.Phase.RUNNING


def test_a_node_that_lost_its_place_to_another_is_a_spare_from_then_on():
    master = Master(rules(max_nodes=2, lease_s=1000.0))
    master.form("a", "b")
    master.join("c", wanted_rank=0)
    master.report("b", DRAINING, 1)
    for node in "abc":
        master.report(node, READY, 1)
    assert ranks(master.job.world) == {"c": 0, "a": 1}
    master.handle(job.AgentDied("b", "b", "its agent is dead"))
    assert master.job.phase is job.Phase.RUNNING


def test_too_few_are_left_and_a_replacement_is_waited_for():
    master = Master(LONG)
    master.form("a", "b")
    master.handle(job.AgentDied("b", "b", "its agent is dead"))
    master.report("a", READY, 1)
    assert master.job.waiting_reason == "1 of 2 nodes are here"
    master.join("b", nonce="second")
    assert master.job.generation == 2


# --- stopping -------------------------------------------------------------------------------------------------


def test_a_node_that_does_not_stop_in_time_is_given_up():
    master = Master(LONG)
    master.form("a", "b", "c")
    master.now = 5.0
    master.report("a", DRAINING, 1)
    master.report("a", READY, 1)
    master.report("b", READY, 1)
    assert master.job.next_deadline() == 35.0
    master.wait(34.9)
    assert master.job.phase is job.Phase.STOPPING
    actions = master.wait(35.0)
    assert tales(actions, NodeLost) == [NodeLost("c", "did not stop within 30 s")]
    assert ranks(master.job.world) == {"a": 0, "b": 1}


def test_a_node_that_was_given_up_comes_back_as_a_spare_and_is_stopped():
    master = Master(LONG)
    master.form("a", "b", "c")
    master.handle(job.AgentDied("c", "c", "its agent is dead"))
    master.report("a", READY, 1)
    master.report("b", READY, 1)
    master.join("c", status=NodeStatus(RUNNING, 1))
    assert orders(master.report("c", RUNNING, 1, reason="still")) == {
        "c": Stop(2, "this node has no place in the world")
    }
    assert orders(master.report("c", DRAINING, 1)) == {}


def test_while_no_world_exists_nobody_may_run():
    master = Master(LONG)
    master.join("a", status=NodeStatus(RUNNING, 4))
    assert orders(master.report("a", RUNNING, 4, reason="still")) == {"a": Stop(0, "no world exists")}


# --- growing --------------------------------------------------------------------------------------------------


def test_a_latecomer_makes_the_world_grow_after_a_last_call_and_costs_no_restart():
    master = Master(LONG)
    master.form("a", "b")
    master.now = 10.0
    master.join("late")
    assert master.job.next_deadline() == 12.0
    assert tales(master.wait(11.9)) == []
    actions = master.wait(12.0)
    assert tales(actions) == [Resizing(1, "late joined")]
    for node in ("a", "b", "late"):
        actions = master.report(node, READY, 1)
    assert tales(actions, WorldFormed)[0].world_size == 6
    assert ranks(master.job.world) == {"a": 0, "b": 1, "late": 2}
    master.run("a", "b", "late")
    assert tales(master.report("a", DRAINING, 2), Stopping)[0].restarts_used == 1


def test_several_latecomers_come_in_together():
    master = Master(rules(lease_s=1000.0, max_nodes=9))
    master.form("a", "b")
    master.now = 10.0
    master.join("z")
    master.now = 11.0
    master.join("c")
    assert tales(master.wait(12.0), Resizing) == [Resizing(1, "c, z joined")]


def test_a_full_world_does_not_grow():
    master = Master(LONG)
    master.form("a", "b", "c")
    master.now = 10.0
    master.join("spare")
    master.wait(50.0)
    assert master.job.generation == 1
    assert master.job.phase is job.Phase.RUNNING


def test_a_job_that_is_about_to_end_does_not_grow():
    master = Master(LONG)
    master.form("a", "b")
    master.report("a", SUCCEEDED, 1)
    master.join("late")
    master.wait(50.0)
    assert master.job.phase is job.Phase.RUNNING


def test_a_latecomer_that_is_not_ready_is_not_waited_for():
    master = Master(LONG)
    master.form("a", "b")
    master.join("late", status=NodeStatus(DRAINING, 7))
    master.wait(50.0)
    assert master.job.phase is job.Phase.RUNNING


def test_a_latecomer_that_goes_again_leaves_the_world_as_it_is():
    master = Master(LONG)
    master.form("a", "b")
    master.join("late")
    master.handle(job.AgentDied("late", "late", "its agent is dead"))
    master.wait(50.0)
    assert master.job.phase is job.Phase.RUNNING


# --- leaving --------------------------------------------------------------------------------------------------


def test_nobody_gets_the_ranks_of_a_leaving_node_before_its_workers_are_gone():
    master = Master(LONG)
    master.form("a", "b", "c")
    actions = master.report("c", LEAVING, 1, reason="SIGTERM received on c")
    assert tales(actions) == [Resizing(1, "node c left: SIGTERM received on c")]
    assert set(orders(actions)) == {"a", "b"}
    master.report("a", READY, 1)
    master.report("b", READY, 1)
    assert master.job.phase is job.Phase.STOPPING
    actions = master.report("c", LEFT, 1, reason="SIGTERM received on c")
    assert tales(actions, NodeLost) == [NodeLost("c", "SIGTERM received on c")]
    assert ranks(master.job.world) == {"a": 0, "b": 1}


def test_a_node_that_has_left_before_anybody_heard_of_it_costs_no_restart_either():
    master = Master(LONG)
    master.form("a", "b", "c")
    actions = master.report("c", LEFT, 1, reason="SIGTERM received on c")
    assert [type(tale) for tale in tales(actions)] == [NodeLost, Resizing]
    assert master.job.next_deadline() == 30.0


def test_a_leaving_node_whose_last_word_was_lost_is_waited_for_one_lease():
    master = Master()
    master.form("a", "b", "c")
    master.report("c", LEAVING, 1, reason="SIGTERM received on c")
    master.now = 9.0
    master.report("a", READY, 1)
    master.report("b", READY, 1)
    assert tales(master.wait(10.0), NodeLost) == [NodeLost("c", "silent for 10 s")]
    assert master.job.generation == 2


def test_a_leaving_spare_or_one_that_has_succeeded_stops_nobody():
    master = Master(LONG)
    master.form("a", "b", "c")
    master.join("spare")
    master.report("spare", LEAVING, 0, reason="SIGTERM received on spare")
    master.report("a", SUCCEEDED, 1)
    master.report("a", LEAVING, 1, reason="SIGTERM received on a")
    master.report("a", LEFT, 1, reason="SIGTERM received on a")
    assert master.job.phase is job.Phase.RUNNING
    assert set(master.job.members) == {"b", "c", "spare"}


# --- the end --------------------------------------------------------------------------------------------------


def test_whoever_asks_for_the_end_gets_it_once_all_have_stopped():
    master = Master(LONG)
    master.form("a", "b")
    actions = master.handle(job.EndRequested(143, "asked to"))
    assert tales(actions) == [Stopping(1, "finish", "asked to", 0, 2)]
    master.report("a", READY, 1, failures=(failure(0, code=5),))
    actions = master.report("b", READY, 1)
    assert tales(actions, JobFinished) == [JobFinished(Outcome(143, "asked to"), 0)]


def test_an_end_asked_for_while_stopping_takes_the_place_of_the_restart():
    master = Master(LONG)
    master.form("a", "b")
    master.report("a", DRAINING, 1, failures=(failure(0, code=5),))
    master.handle(job.EndRequested(143, "asked to"))
    master.report("a", READY, 1)
    master.report("b", READY, 1)
    assert master.job.outcome == Outcome(143, "asked to")


def test_the_person_at_a_node_may_end_the_job():
    master = Master(LONG)
    master.form("a", "b")
    actions = master.report("a", DRAINING, 1, reason="SIGINT received on a", end_job=130)
    assert tales(actions) == [Stopping(1, "finish", "SIGINT received on a", 0, 2)]
    assert tales(master.report("a", READY, 1, reason="SIGINT received on a", end_job=130)) == []
    master.report("b", READY, 1)
    assert master.job.outcome == Outcome(130, "SIGINT received on a")


def test_who_has_the_first_ranks_saves_the_last_step_of_a_job_that_somebody_ends():
    master = Master(WAITING)
    master.form("a", "b", "c")
    told = orders(master.report("c", DRAINING, 1, reason="SIGINT received on c", end_job=130, holds=True))
    stop = replace(STOP, reason="SIGINT received on c")
    assert told == {"a": replace(stop, saves=True), "b": stop, "c": Stop(1, "others have the state")}
    assert orders(master.report("a", DRAINING, 1, holds=True)) == {}
    master = Master(WAITING)
    master.form("a", "b", "c")
    train(master, "a", "b", "c")
    die(master, "a")
    told = orders(master.report("c", DRAINING, 1, reason="SIGINT received on c", end_job=130, holds=True))
    assert told == {"b": replace(stop, saves=True), "c": Stop(1, "others have the state")}


def test_of_nodes_that_leave_the_last_one_saves_the_last_step():
    master = Master(rules(min_nodes=3, strategies=WAITING.strategies))
    master.form("a", "b", "c")
    train(master, "a", "b", "c")
    for node in ("a", "c"):
        assert orders(master.report(node, LEAVING, 1, holds=True)) == {node: Stop(1, "others have the state")}
    assert "b" not in orders(master.report("b", LEAVING, 1, holds=True))


def test_who_is_left_of_a_world_and_leaves_saves_the_last_step():
    master = Master(WAITING)
    master.form("a", "b")
    train(master, "a", "b")
    die(master, "a")
    assert not tales(master.beat("b"), Stopping)
    assert orders(master.report("b", LEAVING, 1, holds=True)) == {}


def test_no_step_is_saved_for_a_restart():
    master = Master()
    master.form("a", "b")
    told = orders(master.report("b", READY, 1, failures=(failure(2, node="b"),)))
    assert [order.saves for order in told.values()] == [False]


def test_the_end_cannot_be_asked_for_twice():
    master = Master()
    master.handle(job.EndRequested(1, "first"))
    assert master.handle(job.EndRequested(2, "second")) == []
    assert master.job.outcome == Outcome(1, "first")
    assert master.job.silent(now=1e9) == ()


def test_before_the_first_world_the_end_is_at_once():
    master = Master()
    master.join("a")
    master.handle(job.EndRequested(3, "no more"))
    assert master.job.outcome == Outcome(3, "no more")


def test_after_the_end_nothing_more_is_told():
    master = Master(LONG)
    master.form("a", "b")
    master.report("a", SUCCEEDED, 1)
    master.report("b", SUCCEEDED, 1)
    assert tales(master.report("a", LEFT, 1, reason="SIGTERM received on a")) == []
    assert master.handle(job.AgentDied("b", "b", "its agent is dead")) == []


# --- a restarted master ---------------------------------------------------------------------------------------


def test_a_restarted_master_repeats_its_wishes_and_gives_everybody_time():
    master = Master()
    master.join("a", "b", "c")
    master.now = 500.0
    actions = master.handle(job.MasterStarted())
    assert tales(actions) == [MasterRestored(1)]
    assert orders(actions) == dict.fromkeys("abc", Run(master.job.world))
    assert master.job.silent(now=509.9) == ()


def test_the_time_without_a_master_counts_for_no_deadline():
    master = Master(LONG)
    master.form("a", "b", "c")
    master.report("a", DRAINING, 1)
    master.now = 500.0
    master.handle(job.MasterStarted())
    assert tales(master.wait(529.9), NodeLost) == []
    assert tales(master.wait(530.0), NodeLost) != []


def test_the_time_without_a_master_is_no_time_to_join():
    master = Master(LONG)
    master.join("a")
    master.now = 500.0
    master.handle(job.MasterStarted())
    master.wait(599.9)
    assert master.job.outcome is None
    master.wait(600.0)
    assert master.job.outcome is not None


def test_a_newcomer_after_a_stop_has_to_answer_for_the_stopped_generation():
    master = Master(LONG)
    master.form("a", "b", "c")
    master.report("a", DRAINING, 1)
    master.join("new", status=JOINED)
    for node in "abc":
        master.report(node, READY, 1)
    assert master.job.phase is job.Phase.STOPPING
    assert orders(master.beat("new")) == {"new": Stop(1, "the group is being stopped")}
