"""A rank that holds up the others for good is told from noise; and a healthy job sends no message per step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.health.results import NodePace, Pace
from holdfast.core.health.stragglers import NUM_IN_A_ROW, Straggler, Stragglers, suspect
from holdfast.core.health.windows import MIN_SAMPLES, NUM_FOLLOWING, WINDOW_S, Totals, Windows

SAMPLE_S = 0.5


class Training:
    """Ranks that step together, one on each node: each takes as long as the slowest."""

    def __init__(self, size: int, *, noise: float = 0.05, seed: int = 0) -> None:
        self.size = size
        self.slow: dict[int, tuple[str, float]] = {}
        """Rank to phase, and how much longer it takes."""
        self.transfer_ms = 5.0
        self.round_trips_ms = dict.fromkeys(range(size), 0.5)
        self.now = 0.0
        self.told: dict[int, int] = dict.fromkeys(range(size), 0)
        self.stragglers = Stragglers()
        self.stragglers.begin(1)
        self._noise = noise
        self._random = random.Random(seed)
        self._totals = {rank: Totals(0, 0.0, 0.0, 0.0, 0.0) for rank in range(size)}
        self._windows = [Windows() for _ in range(size)]

    def run(self, windows: float) -> tuple[list[Straggler], list[Straggler]]:
        """So many windows of training: stragglers that were found, and that were found to be none any more."""
        until = self.now + windows * WINDOW_S
        found: list[Straggler] = []
        gone: list[Straggler] = []
        while self.now < until:
            self.now += SAMPLE_S
            self._step()
            for rank, windows_of in enumerate(self._windows):
                trips = [self.round_trips_ms[rank]]
                pace = windows_of.note({rank: self._totals[rank]}, generation=1, now=self.now, round_trips_ms=trips)
                if pace is not None:
                    self.told[rank] += 1
                    news = self.stragglers.note(f"node{rank}", pace, world_size=self.size)
                    found += news[0]
                    gone += news[1]
        return found, gone

    def _step(self) -> None:
        spent = {}
        for rank in range(self.size):
            phases = {"compute": 80.0, "data": 10.0, "outside": 1.0}
            phase, factor = self.slow.get(rank, ("compute", 1.0))
            if phase == "compute":
                phases = {name: ms * factor for name, ms in phases.items()}
            else:
                phases[phase] += 91.0 * (factor - 1.0)
            spent[rank] = {name: ms * self._random.gauss(1.0, self._noise) for name, ms in phases.items()}
        slowest = max(sum(phases.values()) for phases in spent.values())
        for rank, phases in spent.items():
            old = self._totals[rank]
            wait_ms = slowest - sum(phases.values()) + self.transfer_ms
            self._totals[rank] = Totals(
                old.steps + 4,
                old.compute_s + 4 * phases["compute"] / 1000,
                old.data_s + 4 * phases["data"] / 1000,
                old.outside_s + 4 * phases["outside"] / 1000,
                old.wait_s + 4 * wait_ms / 1000,
            )


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("cause", ["compute", "data", "outside"])
def test_a_rank_that_is_slower_by_a_third_for_three_windows_is_found_with_its_cause(size: int, cause: str):
    training = Training(size)
    assert training.run(10) == ([], [])
    training.slow[1] = (cause, 1.3)
    found, _ = training.run(NUM_IN_A_ROW + 1)
    assert [(straggler.rank, straggler.node, straggler.suspicion.cause) for straggler in found] == [(1, "node1", cause)]


def test_it_is_told_once_when_it_begins_and_once_when_it_ends():
    training = Training(4)
    training.run(3)
    training.slow[2] = ("compute", 1.5)
    found, gone = training.run(20)
    assert ([s.rank for s in found], gone) == ([2], [])
    training.slow.clear()
    found, gone = training.run(20)
    assert (found, [s.rank for s in gone]) == ([], [2])


@pytest.mark.parametrize("windows", [1, 2])
def test_what_lasts_less_than_three_windows_is_noise(windows: int):
    training = Training(4)
    training.run(3)
    for _ in range(5):
        training.slow[2] = ("compute", 2.0)
        assert training.run(windows)[0] == []
        training.slow.clear()
        assert training.run(3)[0] == []


@pytest.mark.parametrize(("noise", "least"), [(0.15, 40), (0.3, 39)])
def test_a_mild_straggler_does_not_hide_in_noise(noise: float, least: int):
    num_found = 0
    for seed in range(40):
        training = Training(2, noise=noise, seed=seed)
        assert training.run(10) == ([], [])
        training.slow[1] = ("compute", 1.3)
        found, _ = training.run(60)
        assert {straggler.rank for straggler in found} <= {1}
        num_found += bool(found)
    assert num_found >= least


def test_a_burst_now_and_then_accuses_nobody():
    accused = 0
    for seed in range(20):
        training, draw = Training(2, noise=0.1, seed=seed), random.Random(seed)
        for _ in range(60):
            training.slow = {rank: ("compute", 1.6) for rank in range(2) if draw.random() < 0.05}
            accused += len(training.run(1)[0])
    assert accused == 0


@pytest.mark.parametrize("size", [2, 3])
def test_nobody_is_accused_in_a_long_noisy_training(size: int):
    for seed in range(20):
        assert Training(size, noise=0.3, seed=seed).run(100) == ([], [])


@given(size=st.integers(2, 8), noise=st.floats(0.0, 0.3), seed=st.integers(0, 1000))
def test_no_healthy_rank_is_accused_however_noisy_the_machine(size: int, noise: float, seed: int):
    assert Training(size, noise=noise, seed=seed).run(30) == ([], [])


def test_a_slow_network_is_blamed_on_the_node_that_is_hard_to_reach():
    training = Training(4)
    training.run(3)
    training.transfer_ms, training.round_trips_ms[3] = 400.0, 120.0
    found, _ = training.run(5)
    assert [(s.rank, s.suspicion.cause) for s in found] == [(3, "network")]


def test_a_slow_network_that_is_nobodys_is_blamed_on_nobody():
    training = Training(4)
    training.transfer_ms = 400.0
    assert training.run(10) == ([], [])


def test_a_rank_that_nobody_waits_for_holds_up_nobody():
    paces = {0: Pace(100.0, 0.0, 0.0, 1.0, 0.1), 1: Pace(200.0, 0.0, 0.0, 1.0, 0.1), 2: Pace(100.0, 0.0, 0.0, 1.0, 0.1)}
    stragglers = Stragglers()
    stragglers.begin(1)
    for window in range(1, 10):
        assert stragglers.note("a", NodePace(1, window, paces), world_size=3) == ([], [])


@pytest.mark.parametrize(("noise_ms", "found"), [(1.0, True), (10.0, False)])
def test_what_noise_explains_is_nobodys_fault(noise_ms: float, found: bool):
    usual, slow = Pace(100.0, 0.0, 0.0, 31.0, noise_ms), Pace(130.0, 0.0, 0.0, 1.0, noise_ms)
    assert bool(suspect(1, {0: usual, 1: slow, 2: usual})) is found


def test_windows_of_another_world_and_windows_told_twice_do_not_count():
    slow = {0: Pace(200.0, 0.0, 0.0, 1.0, 0.1), 1: Pace(100.0, 0.0, 0.0, 101.0, 0.1)}
    stragglers = Stragglers()
    stragglers.begin(2)
    for window in range(1, 10):
        assert stragglers.note("a", NodePace(1, window, slow), world_size=2) == ([], [])
    for _ in range(10):
        assert stragglers.note("a", NodePace(2, 1, slow), world_size=2) == ([], [])
    stragglers.note("a", NodePace(2, 2, slow), world_size=2)
    found, _ = stragglers.note("a", NodePace(2, 3, slow), world_size=2)
    assert [straggler.rank for straggler in found] == [0]
    assert stragglers.begin(3) == found


# --- what is told ----------------------------------------------------------------------------------------------


def test_while_nothing_changes_nothing_is_told():
    training = Training(4, noise=0.02)
    training.run(1000)
    assert max(training.told.values()) <= NUM_FOLLOWING


def test_a_window_of_long_steps_waits_for_enough_of_them():
    windows = Windows()
    told = [
        windows.note({0: Totals(int(now // 60), now, 0.0, 0.0, 0.0)}, generation=1, now=float(now))
        for now in range(60 * (MIN_SAMPLES + 1))
    ]
    assert [bool(each) for each in told].count(True) == 1
    assert told.index(next(filter(None, told))) == 60 * MIN_SAMPLES


def test_a_new_world_begins_a_new_window():
    windows = Windows()
    for generation in (1, 2):
        for now in range(4):
            totals = {0: Totals(10 * now, float(now), 0.0, 0.0, 0.0)}
            assert windows.note(totals, generation=generation, now=float(now)) is None


def test_a_node_without_ranks_has_no_pace():
    windows = Windows()
    assert [windows.note({}, generation=0, now=float(now)) for now in range(100)] == [None] * 100
