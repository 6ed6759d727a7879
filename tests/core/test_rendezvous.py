"""Who takes part in the next world, and with which ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import rules
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import Address
from holdfast.core.rendezvous import Candidate, decide_world, place, seat


def candidate(node: str, *, ready_at: float | None = 0.0, **more: object) -> Candidate:
    return Candidate(node, more.pop("host", "host"), 2, Address("host", 1), ready_at, **more)


def names(members: object) -> list[str]:
    return [member.node for member in members]


def decide(*candidates: Candidate, first: bool = True, now: float = 0.0, **changes: object):
    return decide_world(candidates, first=first, now=now, rules=rules(min_nodes=2, max_nodes=3, **changes))


# --- who ------------------------------------------------------------------------------------------------------


def test_too_few_nodes_wait_and_say_how_many_are_missing():
    decision = decide(candidate("a"))
    assert (decision.members, decision.reason, decision.wake_at) == (None, "1 of 2 nodes are here", None)


def test_the_door_stays_open_for_latecomers_once_there_are_enough():
    decision = decide(candidate("a"), candidate("b", ready_at=1.0), now=2.9, last_call_s=2.0)
    assert decision.members is None
    assert decision.wake_at == 3.0


def test_the_door_closes_a_last_call_after_the_node_that_made_it_enough():
    decision = decide(candidate("a"), candidate("b", ready_at=1.0), now=3.0, last_call_s=2.0)
    assert names(decision.members) == ["a", "b"]


def test_a_full_house_waits_for_nobody():
    assert names(decide(*map(candidate, "abc")).members) == ["a", "b", "c"]


def test_the_later_worlds_have_no_last_call():
    assert names(decide(candidate("a"), candidate("b"), first=False).members) == ["a", "b"]


def test_nobody_starts_while_somebody_is_still_stopping():
    stopping = [candidate(node, ready_at=None) for node in "edcb"]
    decision = decide(candidate("a"), *stopping, candidate("f"), candidate("g"), first=False)
    assert decision.members is None
    assert decision.reason == "waiting for b, c, d and 1 more to stop the old workers"
    assert decide(candidate("x", ready_at=None)).reason == "waiting for x to stop the old workers"


def test_those_beyond_the_maximum_are_spares_and_old_hands_come_first():
    newcomer, old = candidate("a"), [candidate(node, previous_rank=rank) for rank, node in enumerate("bcd")]
    assert names(decide(newcomer, *old).members) == ["b", "c", "d"]


def test_newcomers_are_ordered_by_host_and_name_as_people_count():
    nodes = [candidate("n", host="node10"), candidate("n2", host="node2"), candidate("n1", host="node2")]
    assert [(c.host, c.node) for c in decide(*nodes).members] == [("node2", "n1"), ("node2", "n2"), ("node10", "n")]


# --- ranks ----------------------------------------------------------------------------------------------------


def test_a_node_keeps_its_rank_and_newcomers_fill_the_gaps():
    members = [candidate("b", previous_rank=1), candidate("c", previous_rank=2), candidate("x")]
    assert names(seat(members)) == ["x", "b", "c"]


def test_a_rank_beyond_the_world_is_lost():
    members = [candidate("a", previous_rank=0), candidate("c", previous_rank=2)]
    assert names(seat(members)) == ["a", "c"]


def test_the_rank_the_user_gave_beats_the_old_one():
    members = [candidate("a", wanted_rank=1, previous_rank=0), candidate("b", previous_rank=1)]
    assert names(seat(members)) == ["b", "a"]


def test_ranks_are_counted_through_the_nodes_in_order():
    members = [replace(candidate("a"), num_workers=3), candidate("b")]
    assert [(p.node, p.group_rank, p.first_rank, p.num_workers) for p in place(members)] == [
        ("a", 0, 0, 3),
        ("b", 1, 3, 2),
    ]


# --- the same, thought out by somebody who is slow ------------------------------------------------------------


def slow_seat(members: list[Candidate]) -> list[Candidate]:
    """Walk up to each chair and ask everybody, in order, whether it is theirs; then let the rest sit down."""
    chairs: list[Candidate | None] = [None] * len(members)
    for number in range(len(members)):
        for member in members:
            claim = member.previous_rank if member.wanted_rank is None else member.wanted_rank
            if claim == number and chairs[number] is None:
                chairs[number] = member
    for member in members:
        if not any(chair is member for chair in chairs):
            chairs[chairs.index(None)] = member
    return [chair for chair in chairs if chair is not None]


def slow_place(members: list[Candidate]) -> list[tuple[str, int, int, int]]:
    """Write down every worker, then look for the first of each node."""
    workers = [(group, member.node) for group, member in enumerate(members) for _ in range(member.num_workers)]
    return [
        (member.node, group, workers.index((group, member.node)), member.num_workers)
        for group, member in enumerate(members)
    ]


some_rank = st.none() | st.integers(0, 9)
some_members = st.lists(st.tuples(some_rank, some_rank, st.integers(1, 8)), max_size=8).map(
    lambda drawn: [
        replace(candidate(f"n{number}", wanted_rank=wanted, previous_rank=previous), num_workers=workers)
        for number, (wanted, previous, workers) in enumerate(drawn)
    ]
)


@given(some_members)
def test_seats_are_those_of_the_slow_usher(members):
    assert seat(members) == slow_seat(members)


@given(some_members)
def test_ranks_are_those_of_the_slow_clerk(members):
    assert [(p.node, p.group_rank, p.first_rank, p.num_workers) for p in place(members)] == slow_place(members)


@given(some_members, st.booleans(), st.floats(0.0, 10.0), st.data())
def test_a_world_is_within_its_limits_and_a_refusal_says_why(members, first, now, data):
    low = data.draw(st.integers(1, 8))
    high = data.draw(st.integers(low, 8))
    members = [replace(each, ready_at=data.draw(st.none() | st.floats(0.0, 10.0))) for each in members]
    decision = decide_world(members, first=first, now=now, rules=rules(min_nodes=low, max_nodes=high))
    assert decision.reason
    if decision.members is None:
        assert decision.wake_at is None or decision.wake_at > now
        return
    assert low <= len(decision.members) <= high
    assert len(set(names(decision.members))) == len(decision.members)
    assert all(each.ready_at is not None for each in members)
    assert len(decision.members) == min(high, len(members))


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_the_order_of_arrival_does_not_matter(order):
    assert names(decide(*map(candidate, order)).members) == ["a", "b", "c"]
