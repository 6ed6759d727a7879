"""One node's workers: started by order, watched, stopped, swept."""

from __future__ import annotations

import signal

import pytest
from driving import RULES, Node, reports, without_reports, world

from holdfast.core import workers as core
from holdfast.core.ids import Finish, NodePhase, NodeStatus, Outcome, Run, Stop, WorkerFailure

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def phase_and_generation(node: Node) -> tuple[NodePhase, int]:
    return node.status().phase, node.status().generation


# --- running --------------------------------------------------------------------------------------------------


def test_an_order_to_run_starts_this_nodes_share():
    node = Node()
    it = world(1)
    assert node.order(Run(it)) == [core.Launch(it, it.placements[0], (0, 1), with_store=True)]
    assert phase_and_generation(node) == (NodePhase.RUNNING, 1)
    assert node.status().pids == ()


def test_the_process_ids_are_reported_once_all_are_there():
    node = Node()
    assert node.run() == [core.Report(1, NodeStatus(NodePhase.RUNNING, 1, pids=(11, 12)))]


def test_all_workers_end_well_and_what_they_left_is_swept():
    node = Node()
    node.run()
    assert node.exit(0) == []
    assert node.exit(1) == [core.Sweep()]
    assert phase_and_generation(node) == (NodePhase.RUNNING, 1)
    assert reports(node.handle(core.Swept())) == [NodeStatus(NodePhase.SUCCEEDED, 1)]


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_an_order_that_is_not_newer_than_what_is_known_is_refused(generation):
    node = Node()
    node.run(2)
    node.order(Stop(3, "called off"))
    node.exit(0)
    node.exit(1)
    node.handle(core.Swept())
    assert node.order(Run(world(generation))) == []
    assert node.order(Run(world(4))) != []


def test_a_world_without_this_node_is_not_for_it():
    assert Node().order(Run(world(1, nodes=("b", "c")))) == []


def test_nothing_is_started_while_something_may_be_alive():
    node = Node()
    node.run(1)
    assert node.order(Run(world(2))) == []
    node.order(Stop(1, "why"))
    assert node.order(Run(world(2))) == []


def test_an_order_that_reaches_a_node_cut_off_for_too_long_may_be_too_old():
    node = Node()
    node.now = RULES.fence_s
    assert node.order(Run(world(1))) == []
    node.handle(core.Heard(1.0))
    assert node.order(Run(world(1))) != []


def test_the_node_of_the_master_itself_is_never_cut_off():
    node = Node(hosts_master=True)
    node.now = RULES.fence_s
    assert node.order(Run(world(1))) != []


# --- failing --------------------------------------------------------------------------------------------------


def test_one_worker_fails_and_the_others_are_stopped():
    node = Node()
    node.run()
    failed = WorkerFailure(1, 1, "a", 12, 3, None, "ValueError: no")
    actions = node.exit(1, 3, error="ValueError: no")
    assert actions == [core.Report(2, NodeStatus(NodePhase.DRAINING, 1, (failed,))), core.Forward(TERM)]
    assert node.exit(0, None, signal=TERM) == [core.Sweep()]
    echo = WorkerFailure(0, 0, "a", 11, None, TERM, "", stopped_by_us=True)
    assert reports(node.handle(core.Swept())) == [NodeStatus(NodePhase.READY, 1, (failed, echo))]


def test_a_failure_with_words_of_its_own_is_its_own_although_we_were_stopping():
    node = Node()
    node.run()
    node.order(Stop(1, "why"))
    node.exit(0, 1, error="ValueError: mine")
    assert not node.status().failures[0].stopped_by_us


def test_workers_that_do_not_end_by_themselves_are_swept_when_the_grace_is_over():
    node = Node(drain_s=5.0)
    node.run()
    node.handle(core.Heard(0.0))
    node.now = 1.0
    node.exit(0, 1)
    assert without_reports(node.wait(5.9)) == []
    assert without_reports(node.wait(6.0)) == [core.Sweep()]
    assert without_reports(node.wait(6.5)) == []


def test_the_last_worker_fails_and_only_the_sweep_is_left():
    node = Node()
    node.run()
    node.exit(0)
    assert without_reports(node.exit(1, 1)) == [core.Sweep()]


def test_the_rank_of_a_failure_is_counted_from_the_nodes_first():
    node = Node()
    node.order(Run(world(1, nodes=("b", "a"))))
    node.started()
    node.exit(1, 1)
    assert node.status().failures[0].rank == 3


def test_workers_that_cannot_be_started_are_a_failure():
    node = Node()
    node.order(Run(world(1)))
    actions = node.handle(core.LaunchFailed(1, "no such file"))
    assert reports(actions)[0].failures == (WorkerFailure(0, 0, "a", 0, error="no such file"),)
    assert without_reports(actions) == [core.Sweep()]


def test_the_death_of_the_store_stops_its_generation_only():
    node = Node()
    node.run(2)
    assert node.handle(core.StoreDied(1)) == []
    actions = node.handle(core.StoreDied(2))
    assert reports(actions)[0].reason == "the workers' store died"
    assert without_reports(actions) == [core.Forward(TERM)]
    assert node.handle(core.StoreDied(2)) == []


def test_news_of_another_generation_is_no_news():
    node = Node()
    assert node.handle(core.LaunchFailed(7, "why")) == []
    assert node.handle(core.LaunchFailed(0, "why")) == []
    assert node.handle(core.WorkerExited(0, 1, 1, None)) == []
    assert node.status() == NodeStatus(NodePhase.READY, 0)


# --- stopping -------------------------------------------------------------------------------------------------


def test_an_order_to_stop_drains_sweeps_and_reports_ready():
    node = Node()
    node.run()
    actions = node.order(Stop(1, "the group is being stopped"))
    draining = NodeStatus(NodePhase.DRAINING, 1, reason="the group is being stopped", called_off=True)
    assert reports(actions) == [draining]
    assert without_reports(actions) == [core.Forward(TERM)]
    assert node.exit(0, None, signal=TERM) == []
    assert node.exit(1, 0) == [core.Sweep()]
    assert reports(node.handle(core.Swept()))[0].phase is NodePhase.READY


def test_an_older_order_to_stop_stops_nothing():
    node = Node()
    node.run(2)
    assert node.order(Stop(1, "late")) == []
    assert node.status().phase is NodePhase.RUNNING


def test_stopping_twice_is_stopping_once():
    node = Node()
    node.run()
    node.order(Stop(1, "why"))
    assert node.order(Stop(1, "why")) == []


def test_a_stop_that_comes_before_its_run_calls_it_off():
    node = Node()
    assert reports(node.order(Stop(1, "called off"))) == [NodeStatus(NodePhase.READY, 1)]
    assert node.order(Run(world(1))) == []


def test_failures_belong_to_the_generation_that_ran_and_not_to_one_called_off():
    node = Node()
    node.run(1)
    node.exit(0, 1)
    node.exit(1, 0)
    node.handle(core.Swept())
    assert len(node.status().failures) == 1
    assert reports(node.order(Stop(1, "again")))[0].failures != ()
    assert reports(node.order(Stop(2, "called off"))) == [NodeStatus(NodePhase.READY, 2)]


def test_a_stop_of_a_succeeded_generation_makes_the_node_ready():
    node = Node()
    node.run()
    node.exit(0)
    node.exit(1)
    node.handle(core.Swept())
    assert reports(node.order(Stop(1, "others failed"))) == [NodeStatus(NodePhase.READY, 1)]


def test_a_stop_while_workers_are_being_started_sweeps_what_is_there():
    node = Node()
    node.order(Run(world(1)))
    assert without_reports(node.order(Stop(1, "why"))) == [core.Sweep()]
    assert node.started() == [core.Forward(TERM), core.Forward(TERM)]
    assert node.exit(0, None, signal=KILL) == []
    assert node.exit(1, None, signal=KILL) == []
    assert reports(node.handle(core.Swept()))[0].phase is NodePhase.READY


def test_a_stop_after_the_last_worker_ended_waits_for_the_sweep_under_way():
    node = Node()
    node.run()
    node.exit(0)
    node.exit(1)
    assert without_reports(node.order(Stop(1, "others failed"))) == []
    assert reports(node.handle(core.Swept()))[0].phase is NodePhase.READY


def test_a_new_generation_starts_with_a_clean_slate():
    node = Node()
    node.run(1)
    node.exit(0, 1)
    node.exit(1, 0)
    node.handle(core.Swept())
    node.run(2)
    assert node.status() == NodeStatus(NodePhase.RUNNING, 2, pids=(11, 12))


# --- the end --------------------------------------------------------------------------------------------------

DONE = Outcome(0, "every worker ended with 0")


def test_the_end_of_the_job_sweeps_and_exits_with_its_code():
    node = Node()
    node.run()
    node.exit(0)
    node.exit(1)
    node.handle(core.Swept())
    assert without_reports(node.order(Finish(DONE))) == [core.Sweep()]
    assert node.handle(core.Swept()) == [core.Exit(0, DONE.reason, DONE)]


def test_the_end_comes_once():
    node = Node()
    node.order(Finish(DONE))
    assert node.order(Finish(Outcome(1, "another"))) == []
    assert node.handle(core.Swept()) == [core.Exit(0, DONE.reason, DONE)]


def test_the_end_while_draining_waits_for_the_drain():
    node = Node()
    node.run()
    node.order(Stop(1, "why"))
    assert node.order(Finish(DONE)) == []
    node.exit(0)
    node.exit(1)
    assert node.handle(core.Swept())[-1] == core.Exit(0, DONE.reason, DONE)


def test_nothing_is_started_after_the_end():
    node = Node()
    node.order(Finish(DONE))
    assert node.order(Run(world(1))) == []


def test_an_event_that_nobody_handles_is_a_defect():
    with pytest.raises(AssertionError, match="an event nobody handles"):
        Node().handle("what")
