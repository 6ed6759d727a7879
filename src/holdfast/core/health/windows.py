"""The pace of one node's ranks, window by window, and which windows are worth a message.

A window is told when it differs from what was told last, and so are the few that follow it: whoever compares ranks
counts windows, to tell what lasts from what does not. While nothing changes, nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import median

from holdfast.core.health.results import NodePace, Pace
from holdfast.core.health.verdicts import MAD_TO_SIGMA

WINDOW_S = 5.0
"""Long enough to average over what a scheduler does, short enough to notice a straggler within a few of them."""
MIN_SAMPLES = 5
"""A window of long steps is longer, until it has so many."""
NOTABLE = 0.1
"""A change by so much of a step."""
NUM_FOLLOWING = 12
"""Windows that are told from one that was notable on: enough for a slowness that noise hides now and then."""
MEDIAN_TO_MEAN = 1.2533
"""How much more a median scatters than a mean."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a rank has spent on the steps it has committed, in seconds."""

    steps: int
    compute_s: float
    data_s: float
    outside_s: float
    wait_s: float

    def per_step_since(self, earlier: Totals) -> tuple[float, float, float, float] | None:
        """Milliseconds of each kind; None if there was no step, or what was read makes no sense."""
        steps = self.steps - earlier.steps
        spent = (
            self.compute_s - earlier.compute_s,
            self.data_s - earlier.data_s,
            self.outside_s - earlier.outside_s,
            self.wait_s - earlier.wait_s,
        )
        if steps < 1 or min(spent) < 0:
            return None
        compute, data, outside, wait = (1000.0 * each / steps for each in spent)
        return compute, data, outside, wait


class Windows:
    """Fed with what the beacons show now and then; gives windows worth telling."""

    def __init__(self) -> None:
        self._generation = 0
        self._window = 0
        self._began_at = 0.0
        self._last: dict[int, Totals] = {}
        self._samples: dict[int, list[tuple[float, float, float, float]]] = {}
        self._told: dict[int, Pace] = {}
        self._following = 0

    def note(
        self, totals: Mapping[int, Totals], *, generation: int, now: float, round_trips_ms: Iterable[float] = ()
    ) -> NodePace | None:
        """Take a sample of every rank; the window that it completes, if that is worth telling."""
        if not totals:
            return None
        if generation != self._generation or set(totals) != set(self._last):
            self._generation, self._told, self._following = generation, {}, 0
            self._begin(totals, now=now)
            return None
        for rank, seen in totals.items():
            spent = seen.per_step_since(self._last[rank])
            if spent is not None:
                self._samples[rank].append(spent)
                self._last[rank] = seen
            elif seen.steps < self._last[rank].steps:
                self._begin(totals, now=now)
                return None
        short = any(len(samples) < MIN_SAMPLES for samples in self._samples.values())
        if short or now < self._began_at + WINDOW_S:
            return None
        ranks = {rank: _summarise(samples) for rank, samples in self._samples.items()}
        self._begin(totals, now=now)
        self._window += 1
        if not self._is_worth_telling(ranks):
            return None
        trips = list(round_trips_ms)
        return NodePace(generation, self._window, ranks, round(median(trips), 3) if trips else 0.0)

    def _begin(self, totals: Mapping[int, Totals], *, now: float) -> None:
        self._began_at, self._last = now, dict(totals)
        self._samples = {rank: [] for rank in totals}

    def _is_worth_telling(self, ranks: dict[int, Pace]) -> bool:
        if any(_differs(pace, self._told.get(rank)) for rank, pace in ranks.items()):
            self._told, self._following = ranks, NUM_FOLLOWING
            return True
        self._following = max(0, self._following - 1)
        return self._following > 0


def _summarise(samples: list[tuple[float, float, float, float]]) -> Pace:
    compute, data, outside, wait = (round(median(values), 3) for values in zip(*samples, strict=True))
    busy = [sum(sample[:3]) for sample in samples]
    middle = median(busy)
    noise = MAD_TO_SIGMA * median(abs(each - middle) for each in busy) * MEDIAN_TO_MEAN / sqrt(len(busy))
    return Pace(compute, data, outside, wait, round(noise, 3))


def _differs(pace: Pace, told: Pace | None) -> bool:
    if told is None:
        return True
    limit = NOTABLE * (told.busy_ms + told.wait_ms)
    before = (told.compute_ms, told.data_ms, told.outside_ms, told.wait_ms)
    now = (pace.compute_ms, pace.data_ms, pace.outside_ms, pace.wait_ms)
    return any(abs(one - other) > limit for one, other in zip(before, now, strict=True))
