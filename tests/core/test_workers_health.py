"""A node does each part of a check once, tells its pace, and leaves when it is told to."""

from __future__ import annotations

import signal

from driving import Node, reports, without_reports

from holdfast.core import workers
from holdfast.core.health.results import CheckResult, NodePace, Pace
from holdfast.core.ids import Address, Check, Leave, NodePhase, PairTest, Resumption

OWN = Check(2, 1, "host-a")
TESTS = Check(2, 1, "host-a", (PairTest("b", Address("host-a", 29500), True, 0),))


def test_each_part_of_a_check_is_done_once_and_an_older_one_never():
    node = Node()
    assert node.order(OWN) == [workers.Probe(OWN)]
    assert node.order(OWN) == [], "it is at it"
    assert node.order(TESTS) == [workers.Probe(TESTS)]
    assert node.order(OWN) == []
    assert node.order(Check(1, 2, "host-a")) == []
    following = Check(2, 2, "host-a")
    assert node.order(following) == [workers.Probe(following)]


def test_what_a_probe_finds_out_is_told_unless_it_is_of_another_round():
    node = Node()
    node.order(OWN)
    assert node.handle(workers.Probed(CheckResult(1, 1))) == []
    result = CheckResult(2, 1, is_whole=False)
    assert [status.check for status in reports(node.handle(workers.Probed(result)))] == [result]
    assert node.status().check == result


def test_where_its_workers_begin_is_told_unless_that_is_of_another_world():
    node = Node()
    node.run()
    found = Resumption(1, 40, "resumed at step 40")
    assert [status.resumption for status in reports(node.handle(workers.StateSought(found)))] == [found]
    assert node.handle(workers.StateSought(Resumption(2, 0, "nothing there"))) == []
    assert node.status().resumption == found


def test_a_node_checks_nothing_on_its_way_out():
    node = Node()
    node.order(Leave("slow"))
    assert node.order(OWN) == []


def test_the_pace_of_this_generation_is_told_while_it_runs():
    node = Node()
    node.run(1)
    assert node.handle(workers.Paced(NodePace(0, 1, {}))) == []
    pace = NodePace(1, 1, {0: Pace(1.0, 1.0, 1.0, 1.0, 0.1)})
    assert [status.pace for status in reports(node.handle(workers.Paced(pace)))] == [pace]
    node.exit(0, 1)
    assert node.status().pace is None


def test_a_node_that_is_told_to_leave_stops_its_workers_first():
    node = Node()
    node.run(1)
    said = node.order(Leave("slow (compute)"))
    assert [status.phase for status in reports(said)] == [NodePhase.LEAVING]
    assert without_reports(said) == [workers.Forward(signal.SIGTERM)]
    assert node.order(Leave("slow (compute)")) == [], "once is enough"
    for local_rank in (0, 1):
        said = node.exit(local_rank, None, signal=signal.SIGTERM)
    assert said == [workers.Sweep()]
    said = node.handle(workers.Swept())
    assert [status.phase for status in reports(said)] == [NodePhase.LEFT]
    assert without_reports(said) == [workers.Exit(1, "slow (compute)", None)]
