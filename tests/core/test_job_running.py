"""From a world to its end: success, failures, restarts and the budget for them."""

from __future__ import annotations

import signal

from driving import Master, failure, orders, ranks, rules, tales

from holdfast.core import job
from holdfast.core.ids import Finish, NodePhase, NodeStatus, Outcome, Run, Stop
from holdfast.core.story import JobFinished, NodeLost, Stopping, WorkerFailed, WorkersStarted, WorldFormed

DRAINING, READY, RUNNING, SUCCEEDED = NodePhase.DRAINING, NodePhase.READY, NodePhase.RUNNING, NodePhase.SUCCEEDED
LONG = rules(lease_s=1000.0)


def test_a_start_is_told_once_all_workers_of_the_node_have_a_pid():
    master = Master()
    master.join("a", "b", "c")
    assert tales(master.report("b", RUNNING, 1)) == []
    assert tales(master.report("b", RUNNING, 1, pids=(7, 8))) == [WorkersStarted(1, "b", {2: 7, 3: 8}, None)]
    assert tales(master.report("b", RUNNING, 1, pids=(7, 8), reason="told already")) == []


def test_the_order_to_run_is_repeated_until_the_node_runs():
    master = Master()
    master.join("a", "b", "c")
    assert orders(master.beat("a")) == {"a": Run(master.job.world)}
    assert orders(master.run("a")) == {}


def test_the_job_succeeds_when_every_worker_has():
    master = Master()
    master.form("a", "b")
    assert tales(master.report("a", SUCCEEDED, 1)) == []
    actions = master.report("b", SUCCEEDED, 1)
    outcome = Outcome(0, "every worker ended with 0")
    assert tales(actions) == [JobFinished(outcome, 0)]
    assert orders(actions) == {"a": Finish(outcome), "b": Finish(outcome)}


def test_a_success_counts_although_its_node_is_lost_later():
    master = Master()
    master.form("a", "b")
    master.report("a", SUCCEEDED, 1)
    master.handle(job.AgentDied("a", "a", "its agent is dead"))
    assert master.job.phase is job.Phase.RUNNING
    master.report("b", SUCCEEDED, 1)
    assert master.job.outcome.exit_code == 0


def test_a_success_of_an_older_generation_does_not_count():
    master = Master(LONG)
    master.form("a", "b")
    fail_and_restart(master, "a", "b")
    master.report("a", SUCCEEDED, 1)
    master.report("b", SUCCEEDED, 2)
    assert master.job.phase is job.Phase.RUNNING


def fail_and_restart(master: Master, *nodes: str) -> list[job.Action]:
    """The first node's first worker fails, all stop, and the next world is published."""
    generation = master.job.generation
    first_rank = master.job.world.placement_of(nodes[0]).first_rank
    master.report(nodes[0], DRAINING, generation, failures=(failure(first_rank, node=nodes[0]),))
    for node in nodes:
        actions = master.report(node, READY, generation)
    return actions


def test_a_worker_fails_and_all_are_stopped_then_started_with_the_same_ranks():
    master = Master(LONG)
    master.form("a", "b")
    master.now = 10.0
    failed = failure(3, node="b", code=3)
    actions = master.report("b", DRAINING, 1, failures=(failed,))
    assert tales(actions) == [
        WorkerFailed(1, failed),
        Stopping(1, "restart", "rank 3 ended with exit code 3", 1, 2),
    ]
    assert orders(actions) == {"a": Stop(1, "the group is being stopped")}
    assert orders(master.report("b", READY, 1, failures=(failed,))) == {}
    actions = master.report("a", READY, 1)
    assert tales(actions, WorldFormed)[0].restart_count == 1
    assert ranks(master.job.world) == {"a": 0, "b": 1}
    master.now = 10.5
    assert tales(master.run("a"), WorkersStarted)[0].since_failure_ms == 500.0


def test_the_order_to_stop_is_repeated_until_the_node_stops():
    master = Master(LONG)
    master.form("a", "b")
    master.report("b", DRAINING, 1)
    assert orders(master.beat("a")) == {"a": Stop(1, "the group is being stopped")}
    assert orders(master.report("a", DRAINING, 1)) == {}


def test_a_node_that_ends_its_workers_without_a_failure_gives_its_reason():
    master = Master(LONG)
    master.form("a", "b")
    (tale,) = tales(master.report("a", DRAINING, 1, reason="the workers' store died"))
    assert tale.reason == "node a stopped its workers: the workers' store died"
    master = Master(LONG)
    master.form("a", "b")
    (tale,) = tales(master.report("a", READY, 1))
    assert tale.reason == "node a stopped its workers: no reason given"


def test_echoes_are_recorded_but_cost_nothing():
    master = Master(LONG)
    master.form("a", "b")
    cause = failure(0, code=None, signal=signal.SIGKILL)
    echo = failure(2, node="b", error="RuntimeError: Connection closed by peer")
    stopped = failure(3, node="b", stopped_by_us=True)
    master.report("a", DRAINING, 1, failures=(cause,))
    actions = master.report("b", DRAINING, 1, failures=(echo,))
    assert tales(actions) == [WorkerFailed(1, echo)]
    assert tales(master.report("b", DRAINING, 1, failures=(echo, stopped))) == []
    assert master.job.phase is job.Phase.STOPPING


def test_a_failure_is_told_once_although_every_status_repeats_it():
    master = Master(LONG)
    master.form("a", "b")
    failed = failure(0)
    master.report("a", DRAINING, 1, failures=(failed,))
    assert tales(master.report("a", READY, 1, failures=(failed,))) == []


def test_a_failure_of_a_past_generation_is_not_held_against_the_present_one():
    master = Master(LONG)
    master.form("a", "b")
    fail_and_restart(master, "a", "b")
    assert tales(master.report("a", READY, 1, failures=(failure(0),))) == []
    assert master.job.phase is job.Phase.RUNNING


# --- the budget -----------------------------------------------------------------------------------------------


def test_the_failure_after_the_last_restart_ends_the_job_with_the_workers_exit_code():
    master = Master(rules(lease_s=1000.0, max_restarts=1))
    master.form("a", "b")
    fail_and_restart(master, "a", "b")
    failed = failure(0, code=17)
    (_, stopping) = tales(master.report("a", DRAINING, 2, failures=(failed,)))
    assert stopping.decision == "finish"
    assert stopping.reason == "rank 0 ended with exit code 17; 1 of 1 restarts are used"
    echo = failure(2, node="b", error="RuntimeError: Broken pipe")
    master.report("b", READY, 2, failures=(echo,))
    actions = master.report("a", READY, 2, failures=(failed,))
    outcome = master.job.outcome
    assert (outcome.exit_code, outcome.root_cause, outcome.consequences) == (17, failed, (echo,))
    assert orders(actions) == {"a": Finish(outcome), "b": Finish(outcome)}


def test_without_restarts_the_first_failure_ends_the_job():
    master = Master(rules(lease_s=1000.0, max_restarts=0))
    master.form("a", "b")
    (tale,) = tales(master.report("a", DRAINING, 1), Stopping)
    assert tale.reason.endswith("restarts are off (--max-restarts 0)")


def test_failures_older_than_the_window_are_forgiven():
    master = Master(rules(lease_s=1e6, max_restarts=1, restart_window_s=50.0))
    master.form("a", "b")
    fail_and_restart(master, "a", "b")
    master.now = 52.0
    master.report("b", DRAINING, 2)
    assert master.job.phase is job.Phase.STOPPING
    master.report("a", READY, 2)
    master.report("b", READY, 2)
    assert master.job.generation == 3


def test_without_a_window_no_failure_is_forgiven():
    master = Master(rules(min_nodes=1, max_nodes=1, lease_s=1e9, max_restarts=3, restart_window_s=None))
    master.form("a")
    decisions = []
    for _ in range(4):
        master.now += 3700.0
        decisions += [tale.decision for tale in tales(master.report("a", DRAINING, master.job.generation), Stopping)]
        master.report("a", READY, master.job.generation)
    assert decisions == ["restart", "restart", "restart", "finish"]
    assert master.job.phase is job.Phase.FINISHED


def test_one_fault_seen_from_many_sides_costs_one_restart():
    master = Master(rules(max_restarts=1))
    master.form("a", "b", "c")
    actions = master.wait(20.0)
    assert [tale.node for tale in tales(actions, NodeLost)] == ["a", "b", "c"]
    assert [tale.restarts_used for tale in tales(actions, Stopping)] == [1]
    assert master.job.phase is job.Phase.GATHERING


def test_a_lost_node_is_no_worker_to_blame():
    master = Master(rules(max_restarts=0))
    master.form("a", "b")
    echo = failure(0, error="RuntimeError: Connection closed by peer")
    actions = master.handle(job.AgentDied("b", "b", "its agent is dead"))
    assert tales(actions, NodeLost) == [NodeLost("b", "its agent is dead")]
    master.report("a", READY, 1, failures=(echo,))
    outcome = master.job.outcome
    assert (outcome.exit_code, outcome.root_cause) == (1, None)
    assert outcome.reason == "node b is lost: its agent is dead; restarts are off (--max-restarts 0)"


def test_a_restart_that_never_happens_still_names_its_cause():
    master = Master(rules(lease_s=1000.0, join_timeout_s=20.0))
    master.form("a", "b")
    failed = failure(0, code=9)
    master.report("a", DRAINING, 1, failures=(failed,))
    master.handle(job.AgentDied("b", "b", "its agent is dead"))
    master.report("a", READY, 1, failures=(failed,))
    assert master.job.waiting_reason == "1 of 2 nodes are here"
    master.wait(30.0)
    assert (master.job.outcome.exit_code, master.job.outcome.root_cause) == (9, failed)


# --- nothing old takes effect ---------------------------------------------------------------------------------


def test_a_status_that_was_overtaken_changes_nothing():
    master = Master(LONG)
    master.form("a", "b")
    old = job.StatusReported("a", "a", 0, NodeStatus(DRAINING, 1))
    assert master.job.is_old_news(old)
    assert master.handle(old) == [job.Acknowledge("a", "a", 0)]
    assert master.job.phase is job.Phase.RUNNING


def test_a_beat_changes_no_more_than_a_lease_even_when_a_deadline_has_passed():
    master = Master()
    master.join("a", "b")
    master.now = 5.0
    assert master.beat("a") == [job.Acknowledge("a", "a", 1)]
    assert master.job.generation == 0
    assert master.job.silent(now=10.0) == ("b",)
    assert set(orders(master.wait(5.0))) == {"a", "b"}


def test_a_beat_of_an_older_incarnation_is_no_beat():
    master = Master()
    master.join("a")
    event = job.StatusReported("a", "older", 1, master.job.members["a"].status)
    assert not master.job.is_old_news(event)
    assert not master.job.is_old_news(job.StatusReported("z", "z", 1, event.status))


def test_a_node_that_runs_an_old_generation_is_stopped_first():
    master = Master(LONG)
    master.form("a", "b")
    fail_and_restart(master, "a", "b")
    assert orders(master.report("a", RUNNING, 1)) == {"a": Stop(1, "a newer generation exists")}
    assert orders(master.report("a", DRAINING, 1)) == {}
    assert orders(master.report("a", READY, 1)) == {"a": Run(master.job.world)}


def test_proof_of_the_death_of_an_older_incarnation_proves_nothing():
    master = Master()
    master.form("a", "b")
    assert master.handle(job.AgentDied("a", "older", "dead")) == []
    assert master.handle(job.AgentDied("z", "z", "dead")) == []
    assert set(master.job.members) == {"a", "b"}
