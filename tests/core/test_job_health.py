"""Nodes are checked before they are used, and slow ones are replaced while they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import Master, orders, ranks, registration, rules, tales
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import job
from holdfast.core.health.check import ROUND_S
from holdfast.core.health.results import COMPUTE, CheckResult, NodePace, Pace, PairResult, Timing
from holdfast.core.health.story import CheckRound, NodeUnfit, StragglerFound, StragglerGone
from holdfast.core.ids import Check, Finish, Leave, Mastership, NodePhase, NodeStatus, Prepare, Run
from holdfast.core.story import IncidentOpened, JobFinished, Waiting, WorldFormed
from holdfast.spec.job import JobRules
from holdfast.spec.strategy import Strategy

CHECKED = rules(network_check=True, min_nodes=3, max_nodes=3)


class Cluster(Master):
    """Nodes that do the checks they are told to."""

    def __init__(self, the_rules: JobRules = CHECKED, **options: object) -> None:
        super().__init__(the_rules, **options)
        self.bad: set[str] = set()
        """Nobody can reach them."""
        self.dying: set[str] = set()
        """Their probes are killed."""
        self.slow: set[str] = set()
        self.past: list[tuple[float, job.Event, list[job.Action]]] = []

    def handle(self, event: job.Event) -> list[job.Action]:
        actions = super().handle(event)
        self.past.append((self.now, event, actions))
        return actions

    def obey(self, actions: list[job.Action]) -> list[job.Action]:
        """Do what was ordered, and what is ordered then, until nothing more is to be checked; all that was said."""
        said = list(actions)
        waiting = {node: order for node, order in orders(actions).items() if isinstance(order, Check)}
        while waiting:
            node, check = sorted(waiting.items())[0]
            del waiting[node]
            status = self.job.members[node].status
            more = self.report(
                node, status.phase, status.generation, pids=status.pids, attached=status.attached,
                check=self.result(node, check),
            )  # fmt: skip
            said += more
            waiting |= {name: order for name, order in orders(more).items() if isinstance(order, Check)}
        return said

    def result(self, node: str, check: Check) -> CheckResult:
        number, round_ = check.key[:2]
        if node in self.dying:
            return CheckResult(number, round_, error="the probe was killed by SIGKILL")
        timings = {COMPUTE: Timing(30.0 if node in self.slow else 10.0, 0.1)}
        pairs = [
            PairResult(test.peer, None, "no route to host")
            if {node, test.peer} & self.bad or test.peer in self.dying
            else PairResult(test.peer, Timing(5.0, 0.1))
            for test in check.tests
        ]
        return CheckResult(number, round_, timings, tuple(pairs), is_whole=bool(pairs))


def test_nodes_are_checked_before_the_first_world():
    cluster = Cluster()
    joined = cluster.join("a", "b", "c")
    assert {type(order) for order in orders(joined).values()} == {Check}
    assert [tale.reason for tale in tales(joined, Waiting)][-1] == "checking 3 nodes"
    said = cluster.obey(joined)
    assert [(tale.check_id, tale.round) for tale in tales(said, CheckRound)] == [(1, 1)]
    assert ranks(cluster.job.world) == {"a": 0, "b": 1, "c": 2}
    assert {type(order) for order in orders(said).values()} == {Run}


def test_without_the_flag_nobody_is_checked():
    cluster = Cluster(rules(min_nodes=3, max_nodes=3))
    assert {type(order) for order in orders(cluster.join("a", "b", "c")).values()} == {Run}


def test_a_round_is_told_as_a_table_and_in_the_lines_that_people_look_for():
    cluster = Cluster()
    cluster.dying.add("b")
    cluster.slow.add("c")
    said = [action for rank, node in enumerate("bca") for action in cluster.join(node, wanted_rank=rank)]
    first, second = map(str, tales(cluster.obey(said), CheckRound))
    assert second.splitlines() == [
        "check 1, round 2:",
        "  node  compute ms  memory ms  loopback ms  all-reduce ms  with  verdict",
        "  a          10.00          -            -           5.00  b, c  fit",
        "  b              -          -            -              -  a, c  failed: the probe was killed by SIGKILL",
        "  c          30.00          -            -           5.00  b, a  slow",
        "  Round 2: The node elapsed time are {2: 0.015, 1: 0.035}",
        "  Round 2: The node status are {2: True, 0: False, 1: True}.",
        "  Fault nodes are: [0] and stragglers are: [1].",
    ]
    assert "\n  Round 1: The node elapsed time are {" in first
    nameless = Cluster()
    (table,) = map(str, tales(nameless.obey(nameless.join("a", "b", "c")), CheckRound))
    assert "The node status are {'a': True, 'b': True, 'c': True}." in table


@pytest.mark.parametrize("fault", ["bad", "dying"])
def test_a_failed_node_is_told_to_leave_and_another_one_takes_its_place(fault: str):
    cluster = Cluster()
    getattr(cluster, fault).add("b")
    said = cluster.obey(cluster.join("a", "b", "c"))
    assert [(tale.node, tale.fitness, tale.decision) for tale in tales(said, NodeUnfit)] == [("b", "failed", "refused")]
    assert isinstance(orders(said)["b"], Leave)
    assert cluster.job.world is None
    cluster.report("b", NodePhase.LEAVING, 0)
    cluster.report("b", NodePhase.LEFT, 0)
    said = cluster.obey(cluster.join("d"))
    table = tales(said, CheckRound)[0]
    assert (table.check_id, {row.node: row.verdict for row in table.rows}) == (
        2,
        {"a": "helps", "c": "helps", "d": "fit"},
    )
    assert set(ranks(cluster.job.world)) == {"a", "c", "d"}


def test_with_enough_others_nobody_waits_for_a_replacement():
    cluster = Cluster(replace(CHECKED, min_nodes=2))
    cluster.bad.add("c")
    cluster.obey(cluster.join("a", "b", "c"))
    cluster.wait(CHECKED.last_call_s)
    assert set(ranks(cluster.job.world)) == {"a", "b"}


def test_a_failed_node_that_hosts_the_master_stays_and_is_not_used():
    cluster = Cluster(replace(CHECKED, min_nodes=2))
    cluster.bad.add("a")
    cluster.job.host = "a"
    said = cluster.obey(cluster.join("a", "b", "c"))
    said += cluster.wait(CHECKED.last_call_s)
    assert set(ranks(cluster.job.world)) == {"b", "c"}
    assert "a" not in orders(said) or not isinstance(orders(said)["a"], Leave | Run)


def test_a_job_of_one_node_that_fails_its_check_ends():
    cluster = Cluster(replace(CHECKED, min_nodes=1, max_nodes=1), sole_nonce="a")
    cluster.dying.add("a")
    said = cluster.obey(cluster.join("a"))
    assert isinstance(orders(said)["a"], Finish)
    assert "killed by SIGKILL" in tales(said, JobFinished)[0].outcome.reason


@pytest.mark.parametrize("exclude", [False, True])
def test_a_slow_node_is_reported_and_replaced_only_if_asked_for(exclude: bool):
    cluster = Cluster(replace(CHECKED, exclude_straggler=exclude))
    cluster.slow.add("c")
    said = cluster.obey(cluster.join("a", "b", "c"))
    decision = "refused" if exclude else "used"
    unfit = tales(said, NodeUnfit)
    assert [(tale.node, tale.fitness, tale.metric, tale.decision) for tale in unfit] == [
        ("c", "slow", COMPUTE, decision)
    ]
    assert (cluster.job.world is None) is exclude
    assert isinstance(orders(said)["c"], Leave if exclude else Run)


def test_two_nodes_that_do_not_reach_each_other_wait_for_a_third_to_tell():
    cluster = Cluster(replace(CHECKED, min_nodes=2, max_nodes=2))
    cluster.bad.add("b")
    said = cluster.obey(cluster.join("a", "b"))
    assert {tale.node: tale.decision for tale in tales(said, NodeUnfit)} == {"a": "undecided", "b": "undecided"}
    assert "whose fault" in tales(said, Waiting)[-1].reason
    assert orders(cluster.beat("a", "b")) == {}, "nothing is checked again in vain"
    said = cluster.obey(cluster.join("c"))
    assert [tale.node for tale in tales(said, NodeUnfit)] == ["b"]
    assert set(ranks(cluster.job.world)) == {"a", "c"}


def test_one_of_two_that_do_not_reach_each_other_is_used_where_one_is_enough():
    cluster = Cluster(replace(CHECKED, min_nodes=1, max_nodes=2))
    cluster.bad.add("b")
    cluster.obey(cluster.join("a", "b"))
    cluster.wait(CHECKED.last_call_s)
    assert set(ranks(cluster.job.world)) == {"a"}


# --- a node that comes later -----------------------------------------------------------------------------------


def running(**changes: object) -> Cluster:
    cluster = Cluster(replace(CHECKED, min_nodes=2, max_nodes=2, **changes))
    cluster.obey(cluster.join("a", "b"))
    cluster.run("a", "b")
    return cluster


def test_a_spare_is_checked_with_a_node_that_trains_before_it_is_prepared():
    cluster = running(strategies=(Strategy.RECOVER, Strategy.EXIT))
    for node in ("a", "b"):
        cluster.report(node, NodePhase.RUNNING, 1, pids=(1, 2), attached=True)
    joined = cluster.join("c")
    told = orders(joined)
    assert {node for node, order in told.items() if isinstance(order, Check)} == {"a", "b", "c"}
    assert cluster.job.spares() == [], "nobody counts on it yet"
    said = cluster.obey(joined)
    assert isinstance(orders(said)["c"], Prepare)
    assert {row.node: row.verdict for row in tales(said, CheckRound)[0].rows} == {
        "a": "helps",
        "b": "helps",
        "c": "fit",
    }


def test_a_spare_that_fails_its_check_takes_no_place():
    cluster = running()
    cluster.bad.add("c")
    said = cluster.obey(cluster.join("c"))
    assert isinstance(orders(said)["c"], Leave)
    assert [(tale.node, tale.decision) for tale in tales(said, NodeUnfit)] == [("c", "refused")]
    assert cluster.job.spares() == []


def test_a_replacement_is_used_only_when_it_has_passed():
    cluster = running()
    cluster.wait(1.0)
    cluster.handle(job.AgentDied("b", "b", "dead"))
    cluster.report("a", NodePhase.DRAINING, 1)
    cluster.report("a", NodePhase.READY, 1)
    assert cluster.job.world.generation == 1
    joined = cluster.join("c")
    assert tales(joined, WorldFormed) == []
    assert set(ranks((cluster.obey(joined), cluster.job.world)[1])) == {"a", "c"}


# --- what can go wrong in between ------------------------------------------------------------------------------


def test_a_node_lost_during_its_check_is_not_waited_for():
    cluster = Cluster(replace(CHECKED, min_nodes=2))
    joined = cluster.join("a", "b", "c")
    cluster.handle(job.AgentDied("c", "c", "dead"))
    cluster.obey([action for action in joined if isinstance(action, job.Tell) and action.node != "c"])
    cluster.wait(CHECKED.last_call_s)
    assert set(ranks(cluster.job.world)) == {"a", "b"}


def test_who_never_answers_is_refused_when_time_is_up():
    cluster = Cluster(replace(CHECKED, lease_s=10 * ROUND_S))
    joined = cluster.join("a", "b", "c")
    for round_number in (1, 2):
        for node in ("a", "b"):
            check = cluster.job.health.check
            assert check is not None
            order = check.order_for(node)
            assert isinstance(order, Check)
            own = CheckResult(*order.key[:2], {COMPUTE: Timing(10.0)}, is_whole=False)
            cluster.report(node, NodePhase.READY, 0, check=own)
        assert cluster.job.next_deadline() == round_number * ROUND_S
        said = cluster.wait(round_number * ROUND_S)
    assert joined
    assert [(tale.node, tale.reason) for tale in tales(said, NodeUnfit)] == [("c", f"no result in {ROUND_S:g} s")]


def test_a_restarted_master_goes_on_with_the_check():
    cluster = Cluster()
    joined = cluster.join("a", "b", "c")
    cluster.report("a", NodePhase.READY, 0, check=cluster.result("a", orders(joined)["a"]))
    resumed = cluster.handle(job.MasterStarted())
    assert {node for node, order in orders(resumed).items() if isinstance(order, Check)} == {"b", "c"}
    cluster.obey(resumed)
    assert cluster.job.world is not None


def test_the_checks_of_another_master_are_others():
    """A node refuses what it was asked before, so the numbers of a successor must not be those of the lost one."""
    first = running()
    members = (registration("a"), registration("b"))
    will = job.Will(first.job.master, "a", first.job.world, members, 0, 0, 0, 0.0, ())
    heir = Cluster(first.job.rules)
    heir.handle(job.Inherited(will, Mastership(1, "b"), "b", ("a", "b"), {}, "gone", 1))
    for node in ("a", "b"):
        status = NodeStatus(NodePhase.RUNNING, 1, pids=(1, 2))
        heir.handle(replace(registration(node, status=status), nodes=(2, 2)))
    said = heir.obey(heir.join("c"))
    table = tales(said, CheckRound)[0]
    assert table.check_id > first.job.health.num_checks
    assert {row.node: row.verdict for row in table.rows} == {"a": "helps", "b": "helps", "c": "fit"}


@given(st.data())
def test_whoever_is_bad_no_bad_node_is_used_and_every_good_one_is(data: st.DataObject):
    size = data.draw(st.integers(3, 8))
    nodes = [f"n{number}" for number in range(size)]
    cluster = Cluster(replace(CHECKED, min_nodes=size - 1, max_nodes=size))
    culprit = data.draw(st.sampled_from(nodes))
    getattr(cluster, data.draw(st.sampled_from(["bad", "dying"]))).add(culprit)
    cluster.obey(cluster.join(*nodes))
    cluster.wait(CHECKED.last_call_s)
    assert set(ranks(cluster.job.world)) == set(nodes) - {culprit}
    again = job.Job(cluster.job.rules, now=0.0)
    for now, event, actions in cluster.past:
        assert again.handle(event, now=now) == actions, "a master that replays its journal decides as before"


# --- stragglers ------------------------------------------------------------------------------------------------

USUAL, WAITING, SLOW = Pace(100, 0, 0, 5, 0.5), Pace(100, 0, 0, 55, 0.5), Pace(150, 0, 0, 5, 0.5)


def pace(cluster: Cluster, slow: str | None, *, window: int) -> list[job.Action]:
    said: list[job.Action] = []
    assert cluster.job.world is not None
    for placement in cluster.job.world.placements:
        status = cluster.job.members[placement.node].status
        own = USUAL if slow is None else SLOW if placement.node == slow else WAITING
        paces = {placement.first_rank: own, placement.first_rank + 1: own}
        told = NodePace(cluster.job.generation, window, paces)
        said += cluster.report(
            placement.node, status.phase, status.generation, pids=status.pids, attached=status.attached, pace=told
        )
    return said


def trained(**changes: object) -> Cluster:
    cluster = Cluster(rules(min_nodes=3, max_nodes=3, **changes))
    cluster.join("a", "b", "c")
    cluster.run("a", "b", "c")
    return cluster


def slow_for(cluster: Cluster, node: str | None, windows: range) -> list[job.Action]:
    return [action for window in windows for action in pace(cluster, node, window=window)]


def test_a_straggler_is_told_of_when_it_begins_and_when_it_ends():
    cluster = trained()
    assert tales(slow_for(cluster, None, range(1, 4))) == []
    found = tales(slow_for(cluster, "b", range(4, 10)))
    assert [(t.kind, t.rank, t.node, t.cause, t.decision) for t in found] == [
        ("straggler_found", rank, "b", "compute", "reported") for rank in (2, 3)
    ]
    gone = tales(slow_for(cluster, None, range(10, 20)))
    assert [(type(t), t.rank) for t in gone] == [(StragglerGone, 2), (StragglerGone, 3)]


def test_a_straggler_is_replaced_by_a_spare_if_asked_for():
    cluster = trained(exclude_straggler=True)
    cluster.join("d")
    said = slow_for(cluster, "b", range(1, 4))
    assert tales(said, StragglerFound)[0].decision == "replaced"
    assert isinstance(orders(said)["b"], Leave)
    assert isinstance(orders(cluster.beat("b"))["b"], Leave), "until it goes"
    cluster.report("b", NodePhase.LEAVING, 1, reason="slow")
    for node in ("a", "c", "d"):
        cluster.report(node, NodePhase.READY, 1)
    cluster.report("b", NodePhase.LEFT, 1, reason="slow")
    assert set(ranks(cluster.job.world)) == {"a", "c", "d"}
    assert cluster.job.budget.used(now=cluster.now) == 0, "it costs no restart"


def test_a_straggler_is_kept_where_nobody_can_take_its_place():
    cluster = trained(exclude_straggler=True)
    said = slow_for(cluster, "b", range(1, 4))
    assert tales(said, StragglerFound)[0].decision == "kept: there is no spare node"
    assert not any(isinstance(order, Leave) for order in orders(said).values())
    assert tales(cluster.join("d", num_workers=1), StragglerFound) == [], "it is not like the straggler"


def test_a_straggler_that_was_kept_makes_way_when_a_spare_comes():
    cluster = trained(exclude_straggler=True)
    slow_for(cluster, "b", range(1, 4))
    said = cluster.join("d")
    assert [(tale.rank, tale.decision) for tale in tales(said, StragglerFound)] == [(2, "replaced")]
    assert isinstance(orders(said)["b"], Leave)
    assert tales(cluster.join("e"), StragglerFound) == [], "once"


def test_one_that_is_no_straggler_any_more_stays_when_a_spare_comes():
    cluster = trained(exclude_straggler=True)
    slow_for(cluster, "b", range(1, 4))
    slow_for(cluster, None, range(4, 10))
    assert not any(isinstance(order, Leave) for order in orders(cluster.join("d")).values())


def test_where_nodes_that_are_gone_are_replaced_a_straggler_makes_way_without_a_spare():
    strategies = (Strategy.RECOVER, Strategy.EXIT)
    cluster = trained(exclude_straggler=True, awaits_rank=True, strategies=strategies, lease_s=1e6)
    for node in ("a", "b", "c"):
        cluster.report(node, NodePhase.RUNNING, 1, pids=(10, 11), attached=True, committed=1)
    said = slow_for(cluster, "b", range(1, 4))
    assert {tale.decision for tale in tales(said, StragglerFound)} == {"replaced"}
    assert isinstance(orders(said)["b"], Leave)
    left = cluster.report("b", NodePhase.LEAVING, 1, pids=(10, 11), reason="slow")
    assert [tale.strategy for tale in tales(left, IncidentOpened)] == ["recover"]
    cluster.report("b", NodePhase.LEFT, 1, reason="slow")
    cluster.join("b2")
    assert cluster.job.phase is job.Phase.RUNNING
    assert ranks(cluster.job.world) == {"a": 0, "b2": 1, "c": 2}


def test_one_straggler_after_the_other():
    cluster = trained(exclude_straggler=True, awaits_rank=True, lease_s=1e6)
    slow_for(cluster, "b", range(1, 4))
    slow_for(cluster, None, range(4, 10))
    said = slow_for(cluster, "c", range(10, 16))
    assert {tale.decision for tale in tales(said, StragglerFound)} == {"kept: another node makes way"}


def test_another_world_ends_what_was_said_of_the_one_before():
    cluster = trained(exclude_straggler=False)
    slow_for(cluster, "b", range(1, 4))
    for node in ("a", "b", "c"):
        cluster.report(node, NodePhase.DRAINING, 1, reason="x")
    for node in ("a", "b", "c"):
        cluster.report(node, NodePhase.READY, 1)
    cluster.run("a", "b", "c")
    said = tales(slow_for(cluster, None, range(4, 5)))
    assert {(type(t), t.rank, t.reason) for t in said} == {
        (StragglerGone, rank, "its world is over") for rank in (2, 3)
    }
