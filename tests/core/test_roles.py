"""Jobs of several roles: nodes of each, and how the end of one bears on the others."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fleet.actions import Create, Delete, Interrupt, Quarantine, Reserve, Tell
from holdfast.core.fleet.events import (
    NodeEnded,
    NodeGivenUp,
    NodeStarted,
    RoleFinished,
    ScaleAsked,
    StopAsked,
    TimePassed,
)
from holdfast.core.fleet.machine import NodeState, RoleSize
from holdfast.core.fleet.roles import STRAGGLE_S, Fleets, Verdict
from holdfast.spec.relaunch import RelaunchRules

RULES = RelaunchRules(
    limits={"killed": 2, "hardware": 4, "software": 2, "out_of_memory": 5, "unknown": 2},
    window_s=100.0,
    backoff_s=(1.0, 8.0),
    quarantine=2,
    memory_factor=2.0,
    memory_step_bytes=1 << 30,
    memory_cap_bytes=1 << 33,
)
KILL = {"signal": signal.SIGKILL}
SIZES = (
    RoleSize(role="worker", least=2, most=3, memory_bytes=None),
    RoleSize(role="evaluator", least=1, most=1, memory_bytes=None),
)
WORKERS, EVALUATOR = ("node-0", "node-1", "node-2"), "node-3"


class Driven:
    """Fleets whose nodes all run; hosts go by ids, so that all roles are on the same."""

    def __init__(self, *sizes: RoleSize):
        self.fleets = Fleets(RULES, sizes or SIZES, shutdown_s=30.0)
        self.now = 0.0
        self.actions = self._take(self.fleets.begin(now=0.0))

    def do(self, event, *, after_s: float = 0.0) -> list[object]:
        self.now += after_s
        return [
            action for action in self._take(self.fleets.handle(event, now=self.now)) if not isinstance(action, Tell)
        ]

    def _take(self, actions: list) -> list:
        for action in list(actions):
            if isinstance(action, Create):
                host = f"host-{action.order.id % 2}"
                actions += self.fleets.handle(NodeStarted(action.order.name, host), now=self.now)
        return actions

    def end(self, node: str, **how) -> list[object]:
        return self.do(NodeEnded(node, **how))

    def states(self, role: str) -> dict[str, tuple[int, NodeState]]:
        nodes = self.fleets.fleets[role].nodes
        return {name: (node.order.rank, node.state) for name, node in nodes.items()}


def made(actions: list[object]) -> list[tuple[str, str, int]]:
    orders = [action.order for action in actions if isinstance(action, Create)]
    return [(order.name, order.role, order.rank) for order in orders]


def test_ids_go_through_all_roles_and_ranks_through_each():
    driven = Driven()
    assert made(driven.actions) == [
        ("node-0", "worker", 0),
        ("node-1", "worker", 1),
        ("node-2", "worker", 2),
        ("node-3", "evaluator", 0),
    ]
    assert driven.actions[:2] == [Reserve("worker", 2), Reserve("evaluator", 1)], "before anything is made"


def test_a_lost_node_is_replaced_in_its_role_and_the_others_are_left_alone():
    driven = Driven()
    before = driven.states("evaluator")
    assert made(driven.end("node-1", **KILL)) == [("node-4", "worker", 1)]
    assert made(driven.end(EVALUATOR, **KILL)) == [("node-5", "evaluator", 0)]
    assert driven.states("evaluator") == {EVALUATOR: (0, NodeState.GONE), "node-5": (0, NodeState.RUNNING)}
    assert before == {EVALUATOR: (0, NodeState.RUNNING)}


def test_every_role_has_budgets_of_its_own():
    driven = Driven()
    assert len(made(driven.end("node-0", **KILL) + driven.end("node-1", **KILL))) == 2
    assert made(driven.end("node-2", **KILL)) == [], "the budget of the workers is spent"
    assert made(driven.end(EVALUATOR, **KILL)) == [("node-6", "evaluator", 0)]
    assert driven.fleets.verdict is None


def test_a_host_on_which_nodes_of_different_roles_fail_is_avoided():
    driven = Driven()
    driven.end("node-1", exit_code=201)
    assert Quarantine("host-1") in driven.end(EVALUATOR, exit_code=201)


def test_only_the_role_that_is_named_is_scaled():
    driven = Driven()
    assert driven.do(ScaleAsked("worker", 2)) == [Delete("node-2", 30.0)]
    assert driven.fleets.fleets["evaluator"].num_wanted == 1


def test_a_role_that_ends_well_leaves_the_others_running_and_frees_its_room():
    driven = Driven()
    assert driven.do(RoleFinished("evaluator", 0)) == [Reserve("evaluator", 0)]
    assert driven.end(EVALUATOR, exit_code=0) == [], "nobody takes its place"
    assert driven.fleets.verdict is None
    assert not driven.fleets.is_over
    assert made(driven.end("node-1", **KILL)) == [("node-4", "worker", 1)]
    driven.do(RoleFinished("worker", 0))
    assert not driven.fleets.is_over, "its nodes live"
    for name in ("node-0", "node-2", "node-4"):
        driven.end(name, exit_code=0)
    assert driven.fleets.is_over
    assert driven.fleets.verdict is None


def test_a_job_is_not_over_while_a_role_waits_for_its_next_node():
    driven = Driven(RoleSize(role="worker", least=1, most=1, memory_bytes=None), SIZES[1])
    driven.do(RoleFinished("evaluator", 0))
    driven.end("node-1", exit_code=0)
    driven.end("node-0", exit_code=1)
    assert not any(fleet.living() for fleet in driven.fleets.fleets.values())
    assert not driven.fleets.is_over
    assert made(driven.do(TimePassed(), after_s=1)) == [("node-2", "worker", 0)]


def test_who_stays_when_its_role_has_ended_is_killed_while_the_others_run():
    driven = Driven()
    driven.do(RoleFinished("evaluator", 0))
    assert driven.fleets.next_deadline() == STRAGGLE_S
    assert driven.do(TimePassed(), after_s=STRAGGLE_S) == [Delete(EVALUATOR, 0.0)]


def test_a_role_that_fails_has_the_others_stopped_in_order():
    driven = Driven()
    done = driven.do(RoleFinished("evaluator", 7))
    assert done == [Reserve("evaluator", 0), *map(Interrupt, WORKERS)]
    assert driven.fleets.verdict == Verdict(7, role="evaluator")
    assert driven.end("node-1", **KILL) == [], "nobody is replaced any more"
    driven.do(RoleFinished("worker", 130))
    assert driven.fleets.verdict == Verdict(7, role="evaluator"), "the first one counts"
    for name in ("node-0", "node-2", EVALUATOR):
        assert not driven.fleets.is_over
        driven.end(name, exit_code=130)
    assert driven.fleets.is_over


def test_those_who_do_not_stop_are_killed():
    driven = Driven()
    driven.do(RoleFinished("evaluator", 7))
    assert driven.do(TimePassed(), after_s=STRAGGLE_S) == [Delete(EVALUATOR, 0.0)]
    assert driven.do(TimePassed(), after_s=30.0) == [Delete(name, 0.0) for name in WORKERS]


def test_a_role_that_can_never_have_enough_nodes_ends_the_job():
    driven = Driven()
    for number in range(2):
        driven.end(EVALUATOR if number == 0 else "node-4", **KILL)
        driven.do(TimePassed(), after_s=10)
    done = driven.end("node-5", **KILL)
    assert done == list(map(Interrupt, WORKERS))
    verdict = driven.fleets.verdict
    assert verdict is not None
    assert (verdict.exit_code, verdict.role) == (1, "")
    assert verdict.reason.startswith("the job is given up: role evaluator: 0 nodes are left of at least 1")


def test_a_single_role_is_not_named():
    driven = Driven(RoleSize(role="worker", least=1, most=1, memory_bytes=None))
    for name in ("node-0", "node-1", "node-2"):
        driven.end(name, **KILL)
        driven.do(TimePassed(), after_s=10)
    assert driven.fleets.verdict is not None
    assert driven.fleets.verdict.reason.startswith("the job is given up: 0 nodes are left")


def test_a_stop_is_for_all_roles_and_the_second_one_hurries():
    driven = Driven()
    assert driven.do(StopAsked(143, "stopped")) == [*map(Interrupt, WORKERS), Interrupt(EVALUATOR)]
    driven.do(StopAsked(143, "again"))
    assert not driven.fleets.is_over, "whoever asks again may be patient"
    driven.do(StopAsked(130, "interrupted", impatient=True))
    assert driven.fleets.is_over
    assert driven.fleets.verdict == Verdict(143, "stopped")


STEPS = st.one_of(
    st.tuples(st.just("end"), st.integers(0, 15), st.sampled_from([{"exit_code": 1}, {"exit_code": 0}, KILL])),
    st.tuples(st.just("silent"), st.integers(0, 15)),
    st.tuples(st.just("scale"), st.sampled_from(["worker", "evaluator"]), st.integers(1, 3)),
    st.tuples(st.just("finish"), st.sampled_from(["worker", "evaluator"]), st.sampled_from([0, 0, 7])),
    st.tuples(st.just("stop")),
    st.tuples(st.just("wait"), st.floats(0.1, 20)),
)


@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_ids_are_of_one_role_and_an_ended_job_makes_nothing(steps):
    driven = Driven()
    orders = [action.order for action in driven.actions if isinstance(action, Create)]
    for kind, *what in steps:
        ended = {role for role, fleet in driven.fleets.fleets.items() if fleet.has_ended}
        match kind:
            case "end":
                done = driven.end(f"node-{what[0]}", **what[1])
            case "silent":
                done = driven.do(NodeGivenUp(f"node-{what[0]}", "silent"))
            case "scale":
                done = driven.do(ScaleAsked(*what))
            case "finish":
                done = driven.do(RoleFinished(*what))
            case "stop":
                done = driven.do(StopAsked(143, "stopped"))
            case "wait":
                done = driven.do(TimePassed(), after_s=what[0])
        new = [action.order for action in done if isinstance(action, Create)]
        assert not {order.role for order in new} & ended
        orders += new
        assert [order.id for order in orders] == list(range(len(orders)))
        for role, fleet in driven.fleets.fleets.items():
            assert all(node.order.role == role for node in fleet.nodes.values())
            assert fleet.has_ended or driven.fleets.verdict is None
    for _ in range(2):
        driven.do(StopAsked(143, "stopped"), after_s=1)
        driven.do(TimePassed(), after_s=30.0 + STRAGGLE_S)
    for fleet in driven.fleets.fleets.values():
        assert not fleet.living(NodeState.RUNNING, NodeState.PENDING), "whoever is left was told to go"
