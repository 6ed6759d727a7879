"""What a node does without being told: it beats, fences itself, revives its master, and obeys the person there."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest
from driving import RULES, Node, reports, without_reports, world

from holdfast.core import workers as core
from holdfast.core.ids import Finish, NodePhase, NodeStatus, Outcome, Run, Stop

TERM, INT, HUP, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT


def sent(node: Node, number: int) -> list[core.Action]:
    return node.handle(core.SignalReceived(number))


# --- beating --------------------------------------------------------------------------------------------------


def test_a_node_repeats_its_status_once_a_beat():
    node = Node()
    assert node.group.next_deadline() == 1.0
    assert node.wait(0.9) == []
    assert node.wait(1.0) == [core.Report(1, NodeStatus(NodePhase.READY, 0))]
    assert node.group.next_deadline() == 2.0


def test_any_report_is_a_beat():
    node = Node()
    node.now = 0.5
    node.order(Stop(1, "called off"))
    assert node.group.next_deadline() == 1.5


def test_beats_are_spread_at_random_between_two_bounds():
    draws = iter([0.0, 0.25, 1.0])
    node = Node(beat_s=3.0, beat_spread_s=2.0, draw=lambda: next(draws))
    assert node.group.next_deadline() == 3.0
    node.wait(3.0)
    assert node.group.next_deadline() == 6.5
    node.wait(6.5)
    assert node.group.next_deadline() == 11.5


def test_without_heartbeats_a_running_node_neither_beats_nor_fences_itself():
    node = Node(heartbeat=False)
    assert node.group.next_deadline() == 1.0
    node.run()
    assert node.group.next_deadline() == math.inf
    assert node.wait(1e6) == []


# --- silence --------------------------------------------------------------------------------------------------


def test_a_node_that_is_not_heard_kills_its_workers_before_the_master_gives_them_away():
    node = Node()
    node.run()
    assert without_reports(node.wait(8.9)) == []
    assert without_reports(node.wait(9.0)) == [core.Sweep()]
    assert node.now < RULES.lease_s
    assert node.status().reason == "cut off from the master for 9 s"
    node.handle(core.Swept())
    assert node.status().phase is NodePhase.READY
    assert node.status().called_off
    node.now = 10.0
    node.run(2)
    assert not node.status().called_off


def test_workers_that_were_stopped_by_an_order_have_not_failed_and_those_that_failed_were_not_called_off():
    node = Node()
    node.run()
    node.order(Stop(1, "why"))
    assert node.status().called_off
    failing = Node(drain_s=60.0)
    failing.run()
    failing.exit(0, 1)
    failing.wait(9.0)
    assert not failing.status().called_off


def test_a_node_that_fenced_itself_starts_nothing_until_it_is_heard_again():
    node = Node()
    node.run()
    node.wait(9.0)
    node.handle(core.Swept())
    assert node.order(Run(world(2))) == []
    node.handle(core.Heard(8.0))
    assert without_reports(node.order(Run(world(2)))) != []


def test_an_answer_counts_from_when_the_question_was_sent():
    node = Node()
    node.run()
    node.now = 8.0
    node.handle(core.Heard(3.0))
    node.handle(core.Heard(2.0))
    assert without_reports(node.wait(11.9)) == []
    assert without_reports(node.wait(12.0)) == [core.Sweep()]


def test_draining_workers_are_fenced_too_and_only_once():
    node = Node(drain_s=60.0)
    node.run()
    node.order(Stop(1, "why"))
    assert without_reports(node.wait(9.0)) == [core.Sweep()]
    assert without_reports(node.wait(30.0)) == []


def test_a_node_without_workers_has_nothing_to_fence():
    node = Node()
    assert without_reports(node.wait(1000.0)) == []
    node.handle(core.Heard(1000.0))
    node.run()
    node.exit(0)
    node.exit(1)
    node.handle(core.Swept())
    assert without_reports(node.wait(3000.0)) == []


def test_the_node_that_hosts_the_master_revives_it_instead():
    node = Node(hosts_master=True)
    node.run()
    silence_s = core.REVIVE_LEASES * RULES.lease_s
    assert without_reports(node.wait(silence_s - 0.1)) == []
    assert without_reports(node.wait(silence_s)) == [core.ReviveMaster()]
    assert node.status().phase is NodePhase.RUNNING
    assert without_reports(node.wait(2 * silence_s - 0.1)) == []
    assert without_reports(node.wait(2 * silence_s)) == [core.ReviveMaster()]


STUCK_S = RULES.beat_s + core.UNANSWERED_LEASES * RULES.lease_s


def hosting() -> Node:
    """A node whose master has answered, and would be succeeded by others."""
    node = Node(hosts_master=True)
    node.run()
    node.handle(core.Bequeathed())
    node.now = 1.0
    node.handle(core.Heard(1.0))
    return node


def test_a_master_that_others_would_succeed_is_revived_when_they_lose_patience():
    node = hosting()
    stuck_at = 1.0 + STUCK_S
    assert without_reports(node.wait(stuck_at - 0.1)) == []
    assert without_reports(node.wait(stuck_at)) == [core.ReviveMaster()]
    node.handle(core.MasterDied())
    node.handle(core.Heard(stuck_at - 0.1))
    assert without_reports(node.wait(stuck_at + 0.8 * RULES.lease_s)) == [], "it has time to start, and has answered"


def test_the_node_of_a_stuck_master_kills_its_workers_like_any_other_that_may_be_replaced():
    node = hosting()
    node.wait(1.0 + STUCK_S)
    node.handle(core.MasterDied())
    assert core.Sweep() not in node.wait(1.0 + RULES.fence_s - 0.1)
    assert node.wait(1.0 + RULES.fence_s)[0] == core.Sweep()
    node.handle(core.Swept())
    assert node.order(Run(world(2))) == [], "it may have been replaced after this order was sent"


def test_a_node_that_stood_still_itself_does_not_blame_its_master():
    node = hosting()
    late = 1.0 + STUCK_S + RULES.beat_s + 0.1
    assert core.ReviveMaster() not in node.wait(late)
    assert core.ReviveMaster() in node.wait(late + core.REVIVE_LEASES * RULES.lease_s)


def test_a_node_is_not_safe_because_its_master_has_moved():
    node = hosting()
    node.wait(1.0 + 0.8 * RULES.lease_s)
    node.handle(core.MasterHosted(False))
    assert core.Sweep() in node.wait(1.0 + RULES.fence_s)


# --- signals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [INT, QUIT])
def test_an_interrupt_ends_the_whole_job(number):
    node = Node()
    node.run()
    actions = sent(node, number)
    (status,) = reports(actions)
    assert (status.phase, status.end_job) == (NodePhase.DRAINING, 128 + number)
    assert status.reason == f"{number.name} received on a"
    assert without_reports(actions) == [core.Forward(number)]


def test_after_an_interrupt_the_node_stays_until_the_master_says_how_the_job_ended():
    node = Node()
    node.run()
    sent(node, INT)
    node.exit(0, 130)
    node.exit(1, 130)
    (status,) = reports(node.handle(core.Swept()))
    assert (status.phase, status.end_job) == (NodePhase.READY, 130)
    outcome = Outcome(130, "SIGINT received on a")
    assert without_reports(node.order(Finish(outcome))) == [core.Sweep()]
    assert node.handle(core.Swept()) == [core.Exit(130, "SIGINT received on a", outcome)]


def test_after_an_interrupt_nothing_is_started_and_the_reason_stays():
    node = Node()
    sent(node, INT)
    node.handle(core.Swept())
    assert node.order(Run(world(1))) == []
    assert node.status().reason == "SIGINT received on a"


def test_workers_get_the_long_grace_when_a_person_stops_them():
    node = Node(drain_s=5.0, shutdown_s=20.0)
    node.run()
    sent(node, INT)
    node.handle(core.Heard(19.0))
    assert without_reports(node.wait(19.9)) == []
    assert without_reports(node.wait(20.0)) == [core.Sweep()]


def test_a_master_that_never_answers_an_interrupt_is_not_waited_for():
    node = Node(shutdown_s=20.0)
    sent(node, INT)
    node.handle(core.Swept())
    assert without_reports(node.wait(29.9)) == []
    assert without_reports(node.wait(30.0)) == [core.Sweep()]
    assert node.handle(core.Swept()) == [core.Exit(130, "SIGINT received on a", None)]


def test_the_masters_answer_ends_the_waiting():
    node = Node(shutdown_s=20.0, drain_s=100.0)
    node.run()
    sent(node, INT)
    node.order(Finish(Outcome(130, "over")))
    node.handle(core.Heard(29.0))
    node.wait(20.0)
    assert without_reports(node.wait(31.0)) == []
    assert node.handle(core.Swept())[-1].reason == "over"


def test_a_termination_takes_this_node_out_of_the_job():
    node = Node()
    node.run()
    actions = sent(node, TERM)
    assert reports(actions)[0].phase is NodePhase.LEAVING
    assert reports(actions)[0].end_job is None
    assert without_reports(actions) == [core.Forward(TERM)]
    assert node.order(Stop(1, "why")) == []
    assert node.order(Finish(Outcome(0, "over"))) == []
    node.exit(0, None, signal=TERM)
    node.exit(1, None, signal=TERM)
    (last, end) = node.handle(core.Swept())
    assert last.status.phase is NodePhase.LEFT
    assert end == core.Exit(143, "SIGTERM received on a", None)


def test_a_termination_of_the_node_that_hosts_the_master_ends_the_job():
    node = Node(hosts_master=True)
    assert reports(sent(node, TERM))[0].end_job == 143


def test_a_second_signal_means_now():
    node = Node()
    node.run()
    sent(node, INT)
    assert sent(node, INT) == [core.Sweep()]
    assert node.handle(core.Swept())[-1] == core.Exit(130, "SIGINT received", None)


def test_a_second_signal_keeps_the_way_out_of_the_first():
    node = Node()
    node.run()
    sent(node, TERM)
    assert sent(node, INT) == [core.Sweep()]
    assert node.handle(core.Swept())[-1] == core.Exit(143, "SIGTERM received on a", None)


# --- with notice ----------------------------------------------------------------------------------------------


def attached(*, nodes: Sequence[str] = ("a",), **options: object) -> Node:
    """A node whose workers use the SDK; without others, it holds the whole world."""
    node = Node(**options)
    node.order(Run(world(1, nodes=nodes)))
    node.started()
    for pid in (11, 12):
        node.handle(core.WorkerAttached(pid))
    return node


@pytest.mark.parametrize("nodes", [("a",), ("b", "a")], ids=["alone", "one of two"])
@pytest.mark.parametrize("number", [TERM, INT])
def test_the_first_worker_saves_the_state_before_the_signal_comes(number: int, nodes: Sequence[str]):
    node = attached(nodes=nodes, hosts_master=True, shutdown_s=20.0)
    assert without_reports(sent(node, number)) == [core.GiveNotice(11, 10.0)]
    assert node.handle(core.NoticeHeeded(12)) == []
    assert node.exit(1, 1) == []
    assert node.handle(core.NoticeHeeded(11)) == [core.Forward(number)]
    assert node.handle(core.NoticeHeeded(11)) == []
    assert node.exit(0, None, signal=number) == [core.Sweep()]


def test_who_was_given_notice_and_is_gone_holds_nobody_up():
    node = attached(hosts_master=True)
    sent(node, TERM)
    assert node.exit(0, 1) == [core.Forward(TERM)]


def test_a_notice_is_no_longer_than_the_grace_and_a_second_signal_means_now():
    node = attached(hosts_master=True, shutdown_s=20.0)
    sent(node, TERM)
    assert core.Sweep() not in node.wait(19.9)
    assert core.Sweep() in node.wait(20.0)
    node = attached(hosts_master=True)
    sent(node, TERM)
    assert sent(node, TERM) == [core.Sweep()]


@pytest.mark.parametrize("number", [TERM, INT])
def test_where_others_have_the_state_the_master_says_so_and_nobody_waits(number: int):
    node = attached(nodes=("b", "a"))
    assert reports(sent(node, number))[0].holds
    assert node.order(Stop(1, "others have the state")) == [core.Forward(number)]
    assert not node.status().holds
    assert node.order(Stop(1, "others have the state")) == []


def test_where_nobody_can_save_the_signal_comes_at_once():
    foreign = Node(hosts_master=True)
    foreign.order(Run(world(1, nodes=("a",))))
    foreign.started()
    assert without_reports(sent(foreign, TERM)) == [core.Forward(TERM)]
    assert not foreign.status().holds


@pytest.mark.parametrize("number", [TERM, INT])
def test_where_the_first_worker_is_gone_the_next_one_saves(number: int):
    node = attached(nodes=("b", "a"))
    node.exit(0, None, signal=signal.SIGKILL)
    assert node.status().phase is NodePhase.BROKEN
    assert without_reports(sent(node, number)) == [core.GiveNotice(12, 10.0)]


def test_a_worker_that_starts_meanwhile_waits_with_the_others():
    node = attached()
    node.exit(1, None, signal=signal.SIGKILL)
    node.order(Run(replace(world(2, nodes=("a",)), repairs=True)))
    sent(node, TERM)
    assert node.handle(core.WorkerStarted(1, 13)) == []
    assert node.handle(core.NoticeHeeded(11)) == [core.Forward(TERM)]


def test_the_end_of_the_job_is_held_up_where_the_master_wants_the_step_saved():
    node = attached(nodes=("b", "a"), hosts_master=True, shutdown_s=20.0)
    assert without_reports(node.order(Stop(1, "why", saves=True))) == [core.GiveNotice(11, 10.0)]
    assert without_reports(sent(node, INT)) == [], "the same end, told twice"
    assert core.Sweep() not in node.wait(19.9)
    assert node.handle(core.NoticeHeeded(11)) == [core.Forward(INT)]


def test_stops_that_nobody_here_has_asked_for_come_at_once():
    node = attached()
    assert without_reports(node.order(Stop(1, "why"))) == [core.Forward(TERM)]
    node = attached()
    assert without_reports(node.order(Finish(Outcome(1, "why")))) == [core.Forward(TERM)]


def test_a_hang_up_is_the_loss_of_the_node_and_leaves_no_time_to_drain():
    node = Node()
    node.run()
    assert sent(node, HUP) == [core.Sweep()]
    assert node.exit(0, None, signal=signal.SIGKILL) == []
    (last, end) = node.handle(core.Swept())
    assert (last.status.phase, last.status.reason) == (NodePhase.LEFT, "SIGHUP received")
    assert end == core.Exit(129, "SIGHUP received", None)


def test_a_termination_after_the_end_does_not_change_the_outcome():
    node = Node()
    node.run()
    node.order(Finish(Outcome(3, "over")))
    sent(node, TERM)
    node.exit(0, None, signal=TERM)
    node.exit(1, None, signal=TERM)
    assert node.handle(core.Swept())[-1].code == 3


def test_a_cut_off_node_that_was_leaving_still_leaves():
    node = Node(shutdown_s=60.0)
    node.run()
    sent(node, TERM)
    assert without_reports(node.wait(9.0)) == [core.Sweep()]
    assert node.handle(core.Swept())[-1] == core.Exit(143, "SIGTERM received on a", None)
