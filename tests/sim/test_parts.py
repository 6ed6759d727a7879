"""The simulation's own parts: time, the network, and the laws that it enforces."""

from __future__ import annotations

import random

import pytest

from holdfast.sim.__main__ import main
from holdfast.sim.fleet import Fleet, Process
from holdfast.sim.network import Block, Network, Way
from holdfast.sim.setup import draw_setup
from holdfast.sim.timeline import Alarm, Timeline
from holdfast.sim.trace import Trace


def process(rank: int, generation: int, node: str = "a", **more: object) -> Process:
    return Process(node, generation, rank, 0, 1000 + rank, **{"lose_peer": lambda: None, **more})


def run(timeline: Timeline) -> None:
    while timeline.step():
        pass


# --- time -----------------------------------------------------------------------------------------------------


def test_things_are_done_in_order_of_time_and_then_of_asking():
    timeline, done = Timeline(), []
    for at, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        timeline.at(at, lambda name=name: done.append((timeline.now, name)))
    run(timeline)
    assert done == [(1.0, "a"), (1.0, "b"), (2.0, "c")]


def test_an_alarm_rings_once_at_the_earliest_deadline_it_was_given():
    timeline, rung = Timeline(), []
    alarm = Alarm(timeline, lambda: rung.append(timeline.now))
    for deadline in (5.0, 3.0, 4.0, None):
        alarm.set(deadline)
    run(timeline)
    assert rung == [3.0]


# --- the network ----------------------------------------------------------------------------------------------


@pytest.fixture
def network():
    timeline, rng = Timeline(), random.Random(1)
    return Network(rng, timeline, draw_setup(rng), local="n0"), timeline


def delivered(network: Network, timeline: Timeline, *, num: int = 200, node: str = "n1") -> int:
    arrived: list[float] = []
    for _ in range(num):
        network.send(node, Way.UP, lambda: arrived.append(timeline.now))
    run(timeline)
    return len(arrived)


def test_in_calm_every_message_arrives_once(network):
    network[0].calm()
    assert delivered(*network) == 200


def test_what_is_cut_is_lost_and_the_other_way_is_open(network):
    network[0].block("n1", Way.UP, Block.CUT)
    assert delivered(*network) == 0
    network[0].block("n1", Way.UP, Block.CLOGGED)
    assert delivered(*network, node="n2") > 0


def test_what_is_clogged_arrives_when_the_way_is_free(network):
    wire, timeline = network
    arrived: list[str] = []
    wire.block("n1", Way.DOWN, Block.CLOGGED)
    for _ in range(50):
        wire.send("n1", Way.DOWN, lambda: arrived.append("late"))
    run(timeline)
    assert arrived == []
    wire.free("n1", Way.DOWN)
    run(timeline)
    assert len(arrived) > 40


def test_the_hosts_own_way_to_its_master_is_always_open(network):
    network[0].block("n0", Way.UP, Block.CUT)
    assert delivered(*network, node="n0") == 200


def test_in_calm_nothing_is_blocked_any_more(network):
    network[0].block("n1", Way.UP, Block.CUT)
    network[0].calm()
    network[0].block("n1", Way.UP, Block.CUT)
    assert delivered(*network) == 200


# --- the laws -------------------------------------------------------------------------------------------------


@pytest.fixture
def fleet():
    trace = Trace(42, Timeline())
    trace.say("once upon a time")
    return Fleet(trace)


def test_two_live_workers_of_one_rank_break_the_law(fleet):
    fleet.start(process(3, 1))
    with pytest.raises(AssertionError, match=r"seed 42.*two live workers with one rank(?s:.*)once upon a time"):
        fleet.start(process(3, 1, "b"))


def test_a_rank_that_lives_in_two_generations_breaks_the_law(fleet):
    fleet.start(process(3, 1))
    with pytest.raises(AssertionError, match="a rank lives in two generations"):
        fleet.start(process(3, 2, "b"))


def test_the_next_generation_may_start_once_the_last_one_is_gone(fleet):
    old = process(3, 1)
    fleet.start(old)
    fleet.end(old, clean=False)
    fleet.start(process(3, 2, "b"))
    assert [each.node for each in fleet.live()] == ["b"]


def test_a_worker_that_is_lost_is_felt_by_its_own_generation_once(fleet):
    felt: list[int] = []
    for rank in range(3):
        fleet.start(process(rank, 1, lose_peer=lambda rank=rank: felt.append(rank)))
    first, second, _ = fleet.live()
    fleet.end(first, clean=False)
    fleet.end(second, clean=False)
    assert felt == [1, 2]
    assert fleet.is_broken(1)
    assert not fleet.is_broken(2)


# --- the command ----------------------------------------------------------------------------------------------


def test_the_command_tells_the_story_of_a_seed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sim", "1"])
    assert main() == 0
    assert "over after" in capsys.readouterr().out


def test_the_command_without_a_seed_says_how_to_use_it(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sim", "one"])
    assert main() == 2
    assert "SEED" in capsys.readouterr().err
