"""Which nodes a submitted job gets, and who takes the place of one that is gone."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fleet.actions import Create, Delete, GiveUp, Quarantine, Tell
from holdfast.core.fleet.causes import Cause, Ending, tell_cause
from holdfast.core.fleet.events import (
    MemoryExhausted,
    NodeEnded,
    NodeGivenUp,
    NodeStarted,
    NodeUnfit,
    RoleEnded,
    ScaleAsked,
    TimePassed,
)
from holdfast.core.fleet.hosts import Hosts
from holdfast.core.fleet.machine import Fleet, NodeState, RoleSize
from holdfast.spec.relaunch import RelaunchRules

GIB = 1 << 30
RULES = RelaunchRules(
    limits={"killed": 10, "hardware": 4, "software": 2, "out_of_memory": 5, "unknown": 2},
    window_s=100.0,
    backoff_s=(1.0, 8.0),
    quarantine=2,
    memory_factor=2.0,
    memory_step_bytes=8 * GIB,
    memory_cap_bytes=16 * GIB,
)
KILL = {"signal": signal.SIGKILL}


class Driven:
    """A fleet whose nodes all run, each on a host of its own."""

    def __init__(self, *, least: int = 1, most: int = 4, rules: RelaunchRules = RULES, memory: int | None = GIB):
        size = RoleSize(role="worker", least=least, most=most, memory_bytes=memory)
        self.fleet = Fleet(rules, size, ids=count(), hosts=Hosts(rules), shutdown_s=30.0)
        self.now = 0.0
        self.actions: list[object] = []
        self.do(TimePassed())

    def do(self, event, *, after_s: float = 0.0) -> list[object]:
        """What is done about an event, without what is told; new nodes start at once."""
        self.now += after_s
        done = self.fleet.handle(event, now=self.now)
        self.actions += done
        for action in done:
            if isinstance(action, Create):
                host = f"host-{action.order.rank}"
                self.actions += self.fleet.handle(NodeStarted(action.order.name, host), now=self.now)
        return [action for action in done if not isinstance(action, Tell)]

    def end(self, node: str, **how) -> list[object]:
        return self.do(NodeEnded(node, **how))

    def ranks(self) -> dict[str, int]:
        """The nodes that live."""
        return {name: node.order.rank for name, node in self.fleet.nodes.items() if node.state is not NodeState.GONE}

    def told(self, kind: str) -> list[object]:
        records = [action.record for action in self.actions if isinstance(action, Tell)]
        return [record for record in records if record.kind == kind]


def created(actions) -> list[tuple[str, int]]:
    return [(action.order.name, action.order.rank) for action in actions if isinstance(action, Create)]


def test_every_rank_gets_a_node_at_first():
    assert Driven().ranks() == {"node-0": 0, "node-1": 1, "node-2": 2, "node-3": 3}


def test_ids_never_repeat_and_the_rank_is_inherited():
    driven = Driven()
    assert created(driven.end("node-1", **KILL)) == [("node-4", 1)]
    assert created(driven.end("node-0", **KILL)) == [("node-5", 0)]
    driven.end("node-4", **KILL)
    assert created(driven.do(TimePassed(), after_s=10)) == [("node-6", 1)]
    assert driven.told("node_created")[-1].replaces == "node-4"


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        (Ending(signal=signal.SIGKILL), Cause.KILLED),
        (Ending(exit_code=137), Cause.KILLED),
        (Ending(exit_code=143), Cause.KILLED),
        (Ending(exit_code=129), Cause.KILLED),
        (Ending(exit_code=137, out_of_memory=True), Cause.OUT_OF_MEMORY),
        (Ending(exit_code=247), Cause.OUT_OF_MEMORY),
        (Ending(signal=signal.SIGKILL, silent="silent for 5 s"), Cause.HARDWARE),
        (Ending(exit_code=201), Cause.HARDWARE),
        (Ending(signal=signal.SIGBUS), Cause.HARDWARE),
        (Ending(exit_code=1), Cause.SOFTWARE),
        (Ending(exit_code=128 + signal.SIGSEGV), Cause.SOFTWARE),
        (Ending(exit_code=255), Cause.SOFTWARE),
        (Ending(exit_code=0), Cause.UNKNOWN),
        (Ending(), Cause.UNKNOWN),
    ],
)
def test_causes_are_told_by_evidence(ending: Ending, cause: Cause):
    assert tell_cause(ending)[0] is cause


def test_a_place_waits_longer_each_time_and_forgets():
    driven = Driven()
    assert not driven.end("node-2", exit_code=1)
    assert driven.fleet.next_deadline() == driven.now + 1
    assert created(driven.do(TimePassed(), after_s=1)) == [("node-4", 2)]
    driven.end("node-4", exit_code=1)
    assert driven.fleet.next_deadline() == driven.now + 2
    driven.do(TimePassed(), after_s=2)
    driven.now += RULES.window_s
    driven.end("node-5", exit_code=1)
    assert driven.fleet.next_deadline() == driven.now + 1


def test_each_cause_has_a_budget_of_its_own():
    driven = Driven()
    for name in ("node-0", "node-1"):
        driven.end(name, exit_code=1)
    driven.do(TimePassed(), after_s=5)
    assert driven.end("node-2", exit_code=1) == []
    assert "software" in driven.told("place_given_up")[0].reason
    assert created(driven.end("node-3", **KILL)) == [("node-6", 3)], "others may still be replaced"
    assert driven.fleet.next_deadline() is None


def test_a_job_that_cannot_have_enough_nodes_ends():
    driven = Driven(least=4)
    for name in ("node-0", "node-1"):
        driven.end(name, exit_code=1)
    give_up = driven.end("node-2", exit_code=1)
    assert isinstance(give_up[0], GiveUp)
    assert "3 nodes are left of at least 4" in give_up[0].reason


def test_out_of_memory_doubles_it_up_to_the_cap():
    driven = Driven(most=1)
    sizes = []
    for number in range(5):
        assert driven.do(MemoryExhausted(f"node-{number}")) == [Delete(f"node-{number}", 0.0)]
        driven.end(f"node-{number}", **KILL)
        driven.do(TimePassed(), after_s=10)
        sizes.append(driven.fleet.places[0].memory_bytes // GIB)
    assert sizes == [2, 4, 8, 16, 16]
    assert "the most there is" in driven.told("place_given_up")[0].reason


def test_memory_grows_by_a_step_at_most():
    driven = Driven(most=1, rules=replace(RULES, memory_step_bytes=GIB // 2))
    driven.end("node-0", out_of_memory=True, **KILL)
    assert driven.fleet.places[0].memory_bytes == GIB + GIB // 2


def test_a_node_that_is_cut_off_is_killed_and_replaced():
    driven = Driven()
    assert driven.do(NodeGivenUp("node-1", "silent for 5 s")) == []
    assert driven.do(TimePassed(), after_s=1) == [Delete("node-1", 0.0)]
    assert created(driven.end("node-1", **KILL)) == [("node-4", 1)]
    assert driven.told("node_gone")[0].cause == Cause.HARDWARE


def test_a_node_that_leaves_by_itself_was_not_silent():
    driven = Driven()
    driven.do(NodeGivenUp("node-1", "left"))
    driven.end("node-1", exit_code=143)
    assert driven.told("node_gone")[0].cause == Cause.KILLED
    assert driven.do(TimePassed(), after_s=5) == []


def test_a_node_that_was_refused_for_its_check_is_replaced_as_bad_hardware():
    driven = Driven()
    driven.do(NodeUnfit("node-1", "it is slow"))
    assert created(driven.end("node-1", exit_code=1)) == [("node-4", 1)]
    gone = driven.told("node_gone")[0]
    assert (gone.cause, gone.evidence) == (Cause.HARDWARE, "it is slow")


def test_a_host_on_which_nodes_fail_is_avoided():
    driven = Driven()
    driven.end("node-0", exit_code=201)
    assert not driven.told("host_quarantined")
    assert Quarantine("host-0") in driven.end("node-4", exit_code=201)
    driven.end("node-1", **KILL)
    assert len(driven.told("host_quarantined")) == 1, "being killed is nobody's fault"


def test_scaling_down_takes_the_highest_ranks_and_up_brings_new_nodes():
    driven = Driven()
    assert driven.do(ScaleAsked("worker", 2)) == [Delete("node-2", 30.0), Delete("node-3", 30.0)]
    assert driven.end("node-3", exit_code=143) == []
    assert created(driven.do(ScaleAsked("worker", 4))) == [("node-4", 2), ("node-5", 3)]
    assert driven.end("node-2", exit_code=143) == [], "its place is another's"
    assert driven.ranks() == {"node-0": 0, "node-1": 1, "node-4": 2, "node-5": 3}


def test_scaling_opens_a_place_again_that_was_given_up():
    driven = Driven(rules=replace(RULES, limits=dict.fromkeys(Cause, 0)))
    driven.end("node-1", **KILL)
    assert driven.ranks() == {"node-0": 0, "node-2": 2, "node-3": 3}
    assert created(driven.do(ScaleAsked("worker", 4))) == [("node-4", 1)]


def test_after_the_end_nobody_is_replaced_and_who_is_late_is_killed():
    driven = Driven(most=3)
    driven.end("node-0", exit_code=1)
    driven.do(RoleEnded(10.0, "it is over"))
    assert driven.fleet.next_deadline() == driven.now + 10
    assert driven.end("node-1", **KILL) == []
    assert (driven.told("node_gone")[-1].cause, driven.told("node_gone")[-1].evidence) == ("", "it is over")
    driven.do(RoleEnded(5.0, "again"))
    assert driven.fleet.next_deadline() == driven.now + 5, "the earlier one counts"
    assert driven.do(TimePassed(), after_s=5) == [Delete("node-2", 0.0)]
    assert driven.end("node-2", **KILL) == []
    assert driven.fleet.next_deadline() is None


def test_who_waits_for_room_at_the_end_is_taken_back_even_if_it_starts_just_then():
    size = RoleSize(role="worker", least=1, most=1, memory_bytes=None)
    fleet = Fleet(RULES, size, ids=count(), hosts=Hosts(RULES), shutdown_s=30.0)
    fleet.handle(TimePassed(), now=0.0)
    assert fleet.handle(RoleEnded(10.0, "it is over"), now=1.0) == [Delete("node-0", 0.0)]
    assert fleet.handle(NodeStarted("node-0", "host-0"), now=1.0) == [Delete("node-0", 0.0)]
    fleet.handle(NodeEnded("node-0"), now=2.0)
    assert not fleet.living()


ENDS = st.one_of(
    st.sampled_from([{"exit_code": 1}, {"exit_code": 0}, {"exit_code": 201}, KILL, {"out_of_memory": True}, {}])
)
STEPS = st.one_of(
    st.tuples(st.just("end"), st.integers(0, 30), ENDS),
    st.tuples(st.just("silent"), st.integers(0, 30)),
    st.tuples(st.just("memory"), st.integers(0, 30)),
    st.tuples(st.just("scale"), st.integers(1, 4)),
    st.tuples(st.just("wait"), st.floats(0.1, 50)),
)


@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_no_rank_is_held_twice_and_no_id_used_twice(steps):
    driven = Driven()
    for kind, *what in steps:
        match kind:
            case "end":
                driven.end(f"node-{what[0]}", **what[1])
            case "silent":
                driven.do(NodeGivenUp(f"node-{what[0]}", "silent"))
            case "memory":
                driven.do(MemoryExhausted(f"node-{what[0]}"))
            case "scale":
                driven.do(ScaleAsked("worker", what[0]))
            case "wait":
                driven.do(TimePassed(), after_s=what[0])
        fleet = driven.fleet
        names = [action.order.name for action in driven.actions if isinstance(action, Create)]
        assert len(names) == len(set(names))
        held = [place.node for place in fleet.places.values() if place.node is not None]
        assert len(held) == len(set(held))
        for place in fleet.places.values():
            assert place.node is None or fleet.nodes[place.node].order.rank == place.rank
            assert place.node is None or place.due_at is None
        deadline = fleet.next_deadline()
        assert deadline is None or deadline > driven.now, "what is due is done"
