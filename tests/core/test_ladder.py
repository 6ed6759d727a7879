"""The ladder: finest first, each step with its reason, and never a dead end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.recovery.ladder import Situation, choose
from holdfast.spec.strategy import Strategy

ALL = tuple(Strategy)
HEALTHY = Situation(num_lost=0, num_alive=4, all_attached=True, repeated=False, repairs_left=True)


@pytest.mark.parametrize(
    ("situation", "strategy", "reason"),
    [
        (HEALTHY, Strategy.RETRY, "no process is lost"),
        (
            replace(HEALTHY, num_lost=1, num_alive=3),
            Strategy.RECOVER_IN_PLACE,
            "3 processes alive to take the state from; no retry: 1 process lost",
        ),
        (replace(HEALTHY, num_lost=4, num_alive=0), Strategy.EXIT, "no live worker holds the state"),
        (replace(HEALTHY, all_attached=False), Strategy.EXIT, "not every worker uses the SDK"),
        (replace(HEALTHY, repairs_left=False), Strategy.DUMP, "too many repairs"),
        (replace(HEALTHY, repeated=True), Strategy.DUMP, "the script is at fault"),
        (
            replace(HEALTHY, repeated=True, saves=False),
            Strategy.EXIT,
            "no dump: no step is committed that run.checkpoint() would save",
        ),
        (
            replace(HEALTHY, num_lost=2, num_alive=2, nodes_lost=1),
            Strategy.RECOVER,
            "2 processes alive to take the state from",
        ),
        (
            replace(HEALTHY, num_lost=2, num_alive=2, nodes_lost=1, enough_nodes=3),
            Strategy.ELASTIC_TRAINING,
            "2 processes alive to go on with the same global batch",
        ),
        (
            replace(HEALTHY, num_lost=2, num_alive=2, nodes_lost=1, waited_s=9.0),
            Strategy.DUMP,
            "2 processes alive to save the last step from",
        ),
    ],
)
def test_the_finest_strategy_that_applies_is_chosen_and_says_why(situation: Situation, strategy: Strategy, reason: str):
    plan = choose(situation, allowed=ALL)
    assert plan.strategy is strategy
    assert reason in plan.reason


def test_a_strategy_that_is_not_allowed_is_not_used():
    assert choose(HEALTHY, allowed=(Strategy.RECOVER_IN_PLACE, Strategy.EXIT)).strategy is Strategy.RECOVER_IN_PLACE
    assert choose(replace(HEALTHY, num_lost=1), allowed=(Strategy.RETRY, Strategy.EXIT)).strategy is Strategy.EXIT


def test_only_the_scripts_own_fault_forbids_a_restart():
    assert not choose(replace(HEALTHY, repeated=True), allowed=ALL).restartable
    assert choose(replace(HEALTHY, num_alive=0), allowed=ALL).restartable


@given(
    situation=st.builds(
        Situation,
        num_lost=st.integers(0, 4),
        num_alive=st.integers(0, 4),
        all_attached=st.booleans(),
        repeated=st.booleans(),
        repairs_left=st.booleans(),
        saves=st.booleans(),
        nodes_lost=st.integers(0, 2),
        enough_nodes=st.integers(0, 2),
        waited_s=st.sampled_from([0.0, 60.0]),
    ),
    named=st.sets(st.sampled_from([s for s in Strategy if s is not Strategy.EXIT])),
)
def test_every_situation_has_an_outcome_with_a_reason(situation: Situation, named: set[Strategy]):
    allowed = tuple(strategy for strategy in Strategy if strategy in named or strategy is Strategy.EXIT)
    plan = choose(situation, allowed=allowed)
    assert plan.strategy in allowed
    assert plan.reason


def test_the_order_of_use_is_fixed():
    order = "retry recover-in-place recover elastic-training dump exit"
    assert [strategy.value for strategy in Strategy] == order.split()
