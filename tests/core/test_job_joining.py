"""Who may join a job, and when the first world is formed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import READY, Master, orders, ranks, refusals, registration, rules, tales

from holdfast.core import job
from holdfast.core.ids import Finish, NodePhase, NodeStatus, Run
from holdfast.core.job.state import REFUSALS_TOLD, REFUSALS_WINDOW_S
from holdfast.core.story import NodeJoined, NodeRefused, Waiting, WorldFormed


def test_nodes_wait_until_there_are_enough_and_the_door_is_closed():
    master = Master()
    assert [str(tale) for tale in tales(master.join("a"))] == [
        "node a joined with 2 workers",
        "waiting: 1 of 2 nodes are here",
    ]
    master.now = 1.0
    assert tales(master.join("b"), Waiting) == [Waiting("2 nodes are here, open for up to 3")]
    assert master.job.next_deadline() == 3.0
    assert master.wait(2.9) == []
    actions = master.wait(3.0)
    assert orders(actions) == {"a": Run(master.job.world), "b": Run(master.job.world)}
    assert tales(actions, WorldFormed)[0].generation == 1


def test_a_full_house_starts_at_once():
    master = Master()
    actions = master.join("a", "b", "c")
    assert set(orders(actions)) == {"a", "b", "c"}
    assert (master.job.generation, master.job.restart_count, master.job.world.size) == (1, 0, 6)
    assert ranks(master.job.world) == {"a": 0, "b": 1, "c": 2}
    assert str(master.job.world.store) == "host-a:29500"


def test_the_reason_for_waiting_is_told_only_when_it_changes():
    master = Master(rules(min_nodes=3))
    master.join("a")
    assert tales(master.wait(1.0)) == []
    assert tales(master.join("b"), Waiting) == [Waiting("2 of 3 nodes are here")]


def test_how_many_are_here_is_told_once_a_second():
    """Each word goes to everybody who is here."""
    master = Master(rules(min_nodes=64, max_nodes=64))
    assert tales(master.join("n0"), Waiting) == [Waiting("1 of 64 nodes are here")]
    for number in range(1, 60):
        assert tales(master.join(f"n{number}"), Waiting) == []
    assert master.job.waiting_reason == "60 of 64 nodes are here", "whoever asks is told at once"
    assert master.job.next_deadline() == 1.0
    assert tales(master.wait(1.0), Waiting) == [Waiting("60 of 64 nodes are here")]
    assert tales(master.wait(2.0), Waiting) == []


def test_nobody_comes_in_time_and_the_job_ends_and_says_who_came():
    master = Master(rules(lease_s=1000.0))
    master.join("a")
    assert master.wait(99.9) == []
    actions = master.wait(100.0)
    assert master.job.outcome.exit_code == 1
    assert master.job.outcome.reason == "no world within 100 s: 1 of 2 nodes are here (here: a; 1 missing)"
    assert orders(actions) == {"a": Finish(master.job.outcome)}
    assert master.job.next_deadline() is None


def test_not_even_one_node_comes_in_time():
    master = Master()
    master.wait(100.0)
    assert master.job.outcome.reason.endswith("0 of 2 nodes are here (here: none; 2 missing)")


def test_the_same_incarnation_again_is_a_reconnect():
    master = Master()
    master.join("a")
    assert master.join("a") == [job.Accept("a", "a")]


def test_a_reconnect_is_told_what_it_may_have_missed_and_keeps_its_lease():
    master = Master()
    master.join("a", "b", "c")
    master.now = 9.0
    actions = master.join("a")
    assert actions == [job.Accept("a", "a"), job.Tell("a", "a", Run(master.job.world))]
    assert master.job.silent(now=10.0) == ("b", "c")


def test_another_incarnation_waits_until_the_lease_of_the_first_has_run_out():
    master = Master()
    master.join("a")
    master.now = 4.0
    (refusal,) = refusals(master.join("a", nonce="second"))
    assert refusal.reason == "node id 'a' is held by pid 7 on host-a; free after 10 s without a sign of life"
    assert refusal.retry_after_s == 6.0
    master.wait(10.0)
    assert tales(master.join("a", nonce="second"), NodeJoined)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (replace(registration("b"), job_id="other"), "this master serves job 'job', not 'other'"),
        (
            replace(registration("b"), nodes=(1, 3)),
            "this job was started with --nnodes 2:3, this node with --nnodes 1:3",
        ),
        (replace(registration("b"), wanted_rank=1), "--node-rank 1 is taken by node a"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_for_good(event, words):
    master = Master()
    master.join("a", wanted_rank=1)
    (refusal,) = refusals(master.handle(event))
    assert words in refusal.reason
    assert refusal.retry_after_s is None
    assert [str(tale) for tale in tales(master.handle(event))] == [f"node b refused: {refusal.reason}"]


def test_where_a_platform_replaces_nodes_the_new_one_waits_for_the_rank_of_the_old():
    master = Master(rules(awaits_rank=True))
    master.join("a", wanted_rank=1)
    (refusal,) = refusals(master.join("b", wanted_rank=1))
    assert refusal.retry_after_s == master.job.rules.lease_s
    master.wait(2 * master.job.rules.lease_s)
    assert refusals(master.join("b", wanted_rank=1)) == []


def test_a_node_with_another_number_of_workers_is_refused_where_the_number_is_fixed():
    master = Master(rules(workers_per_node=3))
    (refusal,) = refusals(master.join("a"))
    assert "3 workers on each node (proc_per_node), this node 2 (--nproc-per-node)" in refusal.reason
    assert refusals(Master(rules(workers_per_node=2)).join("a")) == []


def test_different_wanted_ranks_are_no_conflict():
    master = Master()
    master.join("a", wanted_rank=1)
    assert refusals(master.join("b", wanted_rank=0)) == []
    master.wait(2.0)
    assert ranks(master.job.world) == {"b": 0, "a": 1}


def test_a_job_of_one_node_takes_no_other():
    master = Master(rules(min_nodes=1, max_nodes=1), sole_nonce="mine")
    (refusal,) = refusals(master.join("b"))
    assert "one node only" in refusal.reason
    assert refusals(master.join("a", nonce="mine")) == []


def test_spares_are_bounded():
    master = Master(rules(min_nodes=1, max_nodes=1, max_spares=1))
    master.join("a", "b")
    (refusal,) = refusals(master.join("c"))
    assert refusal.reason == "2 nodes have joined already"
    assert refusal.retry_after_s == master.job.rules.lease_s


def test_a_job_that_has_ended_takes_nobody_but_tells_its_members():
    master = Master()
    master.join("a")
    master.handle(job.EndRequested(1, "enough"))
    (refusal,) = refusals(master.join("b"))
    assert (refusal.reason, refusal.retry_after_s) == ("the job has ended", None)
    assert orders(master.join("a")) == {"a": Finish(master.job.outcome)}


def test_whoever_is_unknown_has_to_register_again():
    master = Master()
    master.join("a")
    for node, nonce in (("b", "b"), ("a", "another")):
        event = job.StatusReported(node, nonce, 1, READY)
        assert refusals(master.handle(event)) == [job.Refuse(node, nonce, "not registered; register again", 0.0)]


def test_a_node_that_still_stops_workers_is_waited_for():
    master = Master(rules(min_nodes=1))
    master.join("a", status=NodeStatus(NodePhase.DRAINING, 3))
    assert master.job.waiting_reason == "waiting for a to stop the old workers"
    master.now = 5.0
    master.report("a", NodePhase.READY, 3)
    assert master.job.next_deadline() == 7.0
    master.wait(7.0)
    assert master.job.generation == 1


def test_refusals_without_end_are_answered_but_not_told_without_end():
    master = Master(sole_nonce="mine")
    answers = [master.join(f"n{number}") for number in range(REFUSALS_TOLD + 5)]
    assert all(refusals(actions) for actions in answers)
    assert len([1 for actions in answers if tales(actions, NodeRefused)]) == REFUSALS_TOLD
    assert job.changes_nothing(registration("n"), answers[-1], rules=master.job.rules)
    master.now = REFUSALS_WINDOW_S + 1.0
    assert tales(master.join("late"), NodeRefused) != []
