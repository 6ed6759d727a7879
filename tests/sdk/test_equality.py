"""A run with faults is, bit for bit, the run without; only what a fault struck is lost.

`schedules.py` deals the faults and says what must hold; here a fixed hand of them is played, and each rarer case once.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from schedules import DEADLY, PHASES, Fault, Played, Schedule, complaints, deal, play

SEED = 1
NUM_SCHEDULES = 6


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The run without faults, with which the others are compared."""
    played = play(Schedule(), tmp_path_factory.mktemp("calm") / "job")
    assert played.code == 0, played.story
    assert not complaints(Schedule(), played, played)
    return played


def hold(schedule: Schedule, calm: Played, directory: Path) -> Played:
    played = play(schedule, directory / "job")
    found = complaints(schedule, played, calm)
    assert not found, "\n".join([str(schedule), *found])
    return played


HANDS = list(itertools.islice(deal(SEED), NUM_SCHEDULES))


@pytest.mark.parametrize("schedule", HANDS, ids=range(NUM_SCHEDULES))
def test_random_faults(schedule: Schedule, calm: Played, tmp_path: Path) -> None:
    hold(schedule, calm, tmp_path)


def test_the_hands_reach_every_phase_and_kind() -> None:
    faults = [fault for schedule in HANDS for fault in schedule.faults]
    assert {fault.phase for fault in faults} == {*PHASES, "start", "build"}
    assert {fault.kind for fault in faults} == {*DEADLY, "damage", "hiccup"}
    assert {fault.rank for fault in faults} == {0, 1, 2, 3}
    assert any(schedule.echoes for schedule in HANDS)


def test_all_ranks_but_one_are_lost_again_and_again(calm: Played, tmp_path: Path) -> None:
    phases = iter(("forward", "collective", "backward", "between optimizers", "end of step", "outside", "section"))
    faults = [
        Fault(10 * at + rank, 39 if phase == "section" else at, rank, phase, "kill")
        for at, survivor, phase in zip((15, 19, 24, 29, 34, 36, 38), (0, 1, 2, 3, 3, 1, 2), phases, strict=True)
        for rank in range(4)
        if rank != survivor
    ]
    hold(Schedule(faults), calm, tmp_path)


def test_the_first_step_and_the_last(calm: Played, tmp_path: Path) -> None:
    faults = [
        Fault(0, 0, 1, "forward", "kill"),
        Fault(1, 0, 0, "end of step", "kill"),
        Fault(2, 99, 2, "backward", "kill"),
    ]
    hold(Schedule(faults), calm, tmp_path)


def test_newcomers_that_never_arrive(calm: Played, tmp_path: Path) -> None:
    """Each replacement dies on its way, and then the next one does."""
    faults = [Fault(0, 20, 2, "forward", "kill"), Fault(1, 20, 0, "forward", "segfault")]
    faults += [Fault(2 + n, None, n % 2 * 2, "start" if n < 2 else "build", "kill") for n in range(6)]
    played = hold(Schedule(faults), calm, tmp_path)
    assert {entry["id"] for entry in played.of("fault")} == set(range(8))


def test_one_after_the_other_while_the_repair_is_under_way(calm: Played, tmp_path: Path) -> None:
    schedule = Schedule([Fault(0, 20, 0, "collective", "kill")], echoes={1: 1, 2: 2, 3: 1, 4: 2})
    played = hold(schedule, calm, tmp_path)
    assert len(played.killed) >= 3


@pytest.mark.parametrize("phase", ["outside", "end of section"])
def test_a_rank_that_is_stopped_outside_of_steps(phase: str, calm: Played, tmp_path: Path) -> None:
    hold(Schedule([Fault(0, 39, 1, phase, "stop")]), calm, tmp_path)
