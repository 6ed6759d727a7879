"""Who is found to be bad or slow, from what nodes measure in at most two rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.health.check import ROUND_S, NodeCheck, Site
from holdfast.core.health.pairing import pair_again, pair_up, pairs_in
from holdfast.core.health.results import ALL_REDUCE, COMPUTE, LOOPBACK, MEMORY, CheckResult, PairResult, Timing
from holdfast.core.health.verdicts import MARGINS, Fitness, Verdict
from holdfast.core.ids import Address, Check

METRICS = (COMPUTE, MEMORY, LOOPBACK, ALL_REDUCE)
Measure = Callable[[str, str], float]
"""Milliseconds of a node for a metric."""


def names(count: int) -> list[str]:
    return [f"n{number:02d}" for number in range(count)]


def site(node: str) -> Site:
    return Site(Address(f"host-{node}", 29500), f"machine-{node}")


class Cluster:
    """Nodes that answer a check: some are slow in a metric, some fail a part of it."""

    def __init__(self, nodes: list[str], *, measure: Measure = lambda node, metric: 10.0) -> None:
        self.nodes = nodes
        self.measure = measure
        self.breaks_pairs: set[str] = set()
        self.fails_alone: dict[str, set[int]] = {}
        """Rounds in which a node's probe dies."""
        self.rounds = 0
        self.noise_ms = 0.3
        self._own: dict[str, CheckResult] = {}

    def check(self, *, helpers: int = 0) -> dict[str, Verdict]:
        count = len(self.nodes) - helpers
        check = NodeCheck(
            7,
            subjects={node: site(node) for node in self.nodes[:count]},
            helpers={node: site(node) for node in self.nodes[count:]},
            now=0.0,
        )
        while True:
            self.rounds = check.round
            for _ in ("their own part", "tests with others"):
                orders = {node: check.order_for(node) for node in self.nodes}
                for node, order in orders.items():
                    if order is not None:
                        check.note(node, self.answer(node, order))
            assert check.is_round_over(now=0.0), "everybody has answered"
            verdicts = check.end_round(now=0.0)
            if check.is_decided(verdicts):
                return verdicts
            check.begin_second_round(verdicts, now=0.0)

    def answer(self, node: str, order: Check) -> CheckResult:
        number = order.round
        if number in self.fails_alone.get(node, ()):
            self._own.pop(node, None)
            return CheckResult(7, number, error="the probe was killed by SIGKILL")
        if not order.tests:
            metrics = (COMPUTE, MEMORY, LOOPBACK)
            timings = {metric: Timing(self.measure(node, metric), self.noise_ms) for metric in metrics}
            self._own[node] = CheckResult(7, number, timings, is_whole=False)
            return self._own[node]
        pairs = tuple(self._pair(node, test.peer, number) for test in order.tests)
        own = self._own.get(node, CheckResult(7, number))
        return replace(own, pairs=pairs, is_whole=True)

    def _pair(self, node: str, peer: str, number: int) -> PairResult:
        if {node, peer} & self.breaks_pairs or number in self.fails_alone.get(peer, ()):
            return PairResult(peer, None, "Connection closed by peer")
        return PairResult(
            peer, Timing(max(self.measure(node, ALL_REDUCE), self.measure(peer, ALL_REDUCE)), self.noise_ms)
        )


def accused(verdicts: Mapping[str, Verdict]) -> dict[str, Fitness]:
    return {node: verdict.fitness for node, verdict in verdicts.items() if verdict.fitness is not Fitness.FIT}


# --- who is tested with whom ------------------------------------------------------------------------------------


@given(st.integers(1, 40))
def test_everybody_is_in_one_group_of_two_or_three(count: int):
    groups = pair_up(names(count))
    assert sorted(node for group in groups for node in group) == names(count)
    assert all(len(group) in (2, 3) for group in groups) or count == 1


@given(st.integers(1, 40), st.data())
def test_in_the_second_round_suspects_get_others_above_suspicion(count: int, data: st.DataObject):
    nodes = names(count)
    suspects = data.draw(st.sets(st.sampled_from(nodes), max_size=count // 2))
    first = pair_up(nodes)
    met = {node: [peer for peer in group if peer != node] for group in first for node in group}
    groups = pair_again(nodes, suspects=suspects, met=met)
    assert sorted(node for group in groups for node in group) == nodes
    for node in suspects:
        group = next(group for group in groups if node in group)
        assert set(group) - suspects, "somebody above suspicion is with it"


@given(st.integers(8, 40))
def test_only_the_last_may_meet_the_same_node_twice(count: int):
    nodes = names(count)
    first = pair_up(nodes)
    met = {node: [peer for peer in group if peer != node] for group in first for node in group}
    *groups, _ = pair_again(nodes, suspects=nodes[:2], met=met)
    assert not {pair for group in groups for pair in pairs_in(group)} & {pair for g in first for pair in pairs_in(g)}


def test_in_a_group_of_three_each_is_tested_with_each():
    assert pairs_in(("a", "b", "c")) == [("a", "b"), ("a", "c"), ("b", "c")]


# --- one bad or slow node is found, nobody else is accused ---------------------------------------------------------


@given(count=st.integers(1, 16))
def test_a_healthy_cluster_is_done_after_one_round(count: int):
    cluster = Cluster(names(count))
    assert accused(cluster.check()) == {}
    assert cluster.rounds == 1


@given(count=st.integers(1, 16), data=st.data())
def test_a_node_whose_probe_dies_each_time_has_failed(count: int, data: st.DataObject):
    cluster = Cluster(names(count))
    bad = data.draw(st.sampled_from(cluster.nodes))
    cluster.fails_alone[bad] = {1, 2}
    assert accused(cluster.check()) == {bad: Fitness.FAILED}
    assert cluster.rounds == 2


@given(count=st.integers(2, 16), data=st.data())
def test_a_probe_that_dies_once_is_forgiven(count: int, data: st.DataObject):
    cluster = Cluster(names(count))
    cluster.fails_alone[data.draw(st.sampled_from(cluster.nodes))] = {1}
    assert accused(cluster.check()) == {}


@given(count=st.integers(3, 16), data=st.data())
def test_a_node_that_nobody_can_reach_has_failed(count: int, data: st.DataObject):
    cluster = Cluster(names(count))
    bad = data.draw(st.sampled_from(cluster.nodes))
    cluster.breaks_pairs = {bad}
    assert accused(cluster.check()) == {bad: Fitness.FAILED}


@given(count=st.integers(5, 16), data=st.data())
def test_two_nodes_that_nobody_can_reach_have_failed(count: int, data: st.DataObject):
    cluster = Cluster(names(count))
    cluster.breaks_pairs = data.draw(st.sets(st.sampled_from(cluster.nodes), min_size=2, max_size=2))
    found = accused(cluster.check())
    assert set(found) >= cluster.breaks_pairs
    assert {node for node, fitness in found.items() if fitness is Fitness.FAILED} <= cluster.breaks_pairs


def test_of_two_nodes_that_cannot_reach_each_other_neither_is_blamed():
    cluster = Cluster(names(2))
    cluster.breaks_pairs = {"n00"}
    assert accused(cluster.check()) == {"n00": Fitness.UNRESOLVED, "n01": Fitness.UNRESOLVED}


@given(st.data())
def test_a_helper_decides_between_two_that_cannot_reach_each_other(data: st.DataObject):
    cluster = Cluster(names(data.draw(st.integers(3, 4))))
    bad = data.draw(st.sampled_from(cluster.nodes[:2]))
    cluster.breaks_pairs = {bad}
    assert accused(cluster.check(helpers=len(cluster.nodes) - 2)) == {bad: Fitness.FAILED}


def test_a_newcomer_is_tested_with_a_node_that_is_known_to_be_fit():
    cluster = Cluster(names(2))
    cluster.breaks_pairs = {"n00"}
    assert accused(cluster.check(helpers=1)) == {"n00": Fitness.FAILED}


@pytest.mark.parametrize("metric", METRICS)
@given(count=st.integers(2, 16), data=st.data())
def test_a_slow_node_is_found_by_the_metric_it_is_slow_in(metric: str, count: int, data: st.DataObject):
    nodes = names(count)
    slow = data.draw(st.sampled_from(nodes))
    noise = {
        (node, each): data.draw(st.floats(0.95, 1.05), label=f"{node} {each}") for node in nodes for each in METRICS
    }
    factor = data.draw(st.floats(1.5 * (1.0 + MARGINS[metric]), 50.0))
    cluster = Cluster(
        nodes,
        measure=lambda node, each: 10.0 * noise[node, each] * (factor if node == slow and each == metric else 1.0),
    )
    verdicts = cluster.check()
    if metric == ALL_REDUCE and count == 2:
        # There is one figure for both, and nothing to compare it with.
        assert accused(verdicts) == {}
    else:
        assert accused(verdicts) == {slow: Fitness.SLOW}
        assert verdicts[slow].metric == metric


@given(count=st.integers(2, 16), data=st.data())
def test_noise_accuses_nobody(count: int, data: st.DataObject):
    """A tenth up and down, in every metric and every round."""
    draw = st.floats(0.9, 1.1)
    cluster = Cluster(names(count), measure=lambda node, metric: 10.0 * data.draw(draw))
    assert accused(cluster.check()) == {}


def test_what_disturbs_all_of_them_at_times_is_nobodys_fault():
    """Two are lucky in the first round, and all are disturbed in the second."""
    cluster = Cluster(names(4))
    cluster.measure = lambda node, metric: 10.0 if cluster.rounds == 1 and node in ("n00", "n01") else 20.0
    assert accused(cluster.check()) == {}
    assert cluster.rounds == 2


def test_what_scatters_widely_needs_more_to_be_called_slow():
    cluster = Cluster(names(4), measure=lambda node, metric: 15.0 if node == "n02" else 10.0)
    cluster.noise_ms = 0.1
    assert accused(cluster.check()) == {"n02": Fitness.SLOW}
    cluster.noise_ms = 3.0
    assert accused(cluster.check()) == {}


def test_who_is_slow_in_several_ways_is_told_the_one_that_tells_most():
    slow = {MEMORY: 17.0, ALL_REDUCE: 200.0}
    cluster = Cluster(names(4), measure=lambda node, metric: slow.get(metric, 10.0) if node == "n02" else 10.0)
    verdict = cluster.check()["n02"]
    assert (verdict.fitness, verdict.metric) == (Fitness.SLOW, ALL_REDUCE)
    assert verdict.reason == "200.0 ms where the others take 10.0 ms (20.0 times)"


def test_a_newcomer_is_compared_with_what_the_others_show_at_the_same_time():
    cluster = Cluster(names(2), measure=lambda node, metric: 25.0 if node == "n00" else 10.0)
    assert cluster.check(helpers=1)["n00"] == Verdict(
        Fitness.SLOW, COMPUTE, "25.0 ms where the others take 10.0 ms (2.5 times)"
    )
    cluster.measure = lambda node, metric: 25.0
    assert accused(cluster.check(helpers=1)) == {}, "a machine that is busy for all of them"


# --- nothing leaks ---------------------------------------------------------------------------------------------


def started(count: int = 2) -> NodeCheck:
    return NodeCheck(7, subjects={node: site(node) for node in names(count)}, helpers={}, now=0.0)


@pytest.mark.parametrize("key", [(6, 1), (8, 1), (7, 2)])
def test_results_of_another_check_or_round_are_refused(key: tuple[int, int]):
    check = started()
    check.note("n00", CheckResult(*key))
    assert check.results == {}
    assert check.order_for("n00") is not None


def test_results_of_a_node_that_was_not_asked_are_refused():
    check = started()
    check.note("stranger", CheckResult(7, 1))
    assert check.results == {}


def test_nobody_is_tested_with_a_node_that_failed_its_own_part():
    check = started(3)
    check.note("n00", CheckResult(7, 1, error="killed"))
    assert check.awaited() == ["n01", "n02"]
    check.note("n01", CheckResult(7, 1, {COMPUTE: Timing(10.0)}, is_whole=False))
    assert check.order_for("n01") is None, "it waits for the third"
    check.note("n02", CheckResult(7, 1, {COMPUTE: Timing(10.0)}, is_whole=False))
    orders = [check.order_for(node) for node in names(3)]
    assert [[test.peer for test in order.tests] if order else None for order in orders] == [None, ["n02"], ["n01"]]


def test_nobody_waits_for_a_node_that_only_waits_for_one_that_failed():
    check = started()
    for node in names(2):
        check.note(node, CheckResult(7, 1, {COMPUTE: Timing(10.0)}, is_whole=False))
    assert check.awaited() == names(2)
    check.note("n00", CheckResult(7, 1, error="killed"))
    assert check.awaited() == []


def test_each_test_of_a_group_has_its_time():
    check = started(3)
    for node in names(3):
        check.note(node, CheckResult(7, 1, is_whole=False))
    slots = {}
    for node in names(3):
        order = check.order_for(node)
        assert order is not None
        slots |= {frozenset((node, test.peer)): test.slot for test in order.tests}
    assert sorted(slots.values()) == [0, 1, 2]


def test_nobody_waits_for_a_node_that_is_lost():
    check = started(3)
    for node in ("n00", "n01"):
        check.note(node, CheckResult(7, 1, is_whole=False))
    assert not check.is_round_over(now=0.0)
    check.lose("n02")
    order = check.order_for("n00")
    assert order is not None
    assert [test.peer for test in order.tests] == ["n01"]
    for node, peer in (("n00", "n01"), ("n01", "n00")):
        check.note(node, CheckResult(7, 1, pairs=(PairResult(peer, Timing(10.0)), PairResult("n02", None, "gone"))))
    assert check.is_round_over(now=0.0)
    assert accused(check.end_round(now=0.0)) == {}


def test_who_does_not_answer_in_time_has_failed():
    check = started()
    check.note("n00", CheckResult(7, 1, {COMPUTE: Timing(10.0)}, is_whole=False))
    assert not check.is_round_over(now=ROUND_S - 1)
    assert check.is_round_over(now=ROUND_S)
    assert accused(check.end_round(now=ROUND_S)) == {"n01": Fitness.FAILED}


def test_who_helps_measures_the_same_and_never_leads():
    check = NodeCheck(7, subjects={"n00": site("n00")}, helpers={"n01": site("n01")}, now=0.0)
    for node in names(2):
        own = check.order_for(node)
        assert own is not None
        assert own.tests == ()
        check.note(node, CheckResult(7, 1, {COMPUTE: Timing(10.0)}, is_whole=False))
    helping, asked = check.order_for("n01"), check.order_for("n00")
    assert helping is not None
    assert asked is not None
    assert [test.leads for test in helping.tests] == [False]
    assert [test.leads for test in asked.tests] == [True]


def test_who_cannot_help_is_not_judged():
    check = NodeCheck(7, subjects={"n00": site("n00")}, helpers={"n01": site("n01")}, now=0.0)
    check.note("n01", CheckResult(7, 1, error="killed"))
    check.note("n00", CheckResult(7, 1, {COMPUTE: Timing(10.0)}, is_whole=False))
    assert check.is_round_over(now=0.0)
    assert check.end_round(now=0.0) == {"n00": Verdict(Fitness.FIT)}
