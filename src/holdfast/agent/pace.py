"""Watching what the steps of this node's ranks cost: a few reads of shared memory a second, and hardly a message."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from holdfast.agent.hangs import Watched
from holdfast.core.health.results import NodePace
from holdfast.core.health.windows import Totals, Windows
from holdfast.observe import beacon

LOOK_S = 0.5
NUM_ROUND_TRIPS = 16
"""The newest so many stand for how hard the master is to reach."""


class PaceWatch:
    """Samples the beacons, and says when the pace of the ranks is worth telling."""

    def __init__(
        self,
        *,
        workers: Callable[[], dict[int, Watched]],
        generation: Callable[[], int],
        tell: Callable[[NodePace], None],
    ) -> None:
        self._workers = workers
        self._generation = generation
        self._tell = tell
        self._windows = Windows()
        self._round_trips_ms: deque[float] = deque(maxlen=NUM_ROUND_TRIPS)

    def note_round_trip(self, seconds: float) -> None:
        """A report was answered after so long."""
        self._round_trips_ms.append(1000.0 * seconds)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        generation = self._generation()
        totals: dict[int, Totals] = {}
        for rank, worker in self._workers().items():
            seen = beacon.read(worker.beacon)
            if seen is None or seen.generation != generation:
                return
            totals[rank] = Totals(seen.num_steps, *seen.costs_s)
        pace = self._windows.note(
            totals, generation=generation, now=time.monotonic(), round_trips_ms=self._round_trips_ms
        )
        if pace is not None:
            self._tell(pace)
