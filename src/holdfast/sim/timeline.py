"""Simulated time: a heap of things to do."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """Does what was asked for in order of time; what is due at the same time, in the order it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_done = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._num_asked = 0

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._num_asked += 1
        heapq.heappush(self._heap, (max(when, self.now), self._num_asked, act))

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        self.at(self.now + delay_s, act)

    def step(self) -> bool:
        """Do the next thing; False when there is none."""
        if not self._heap:
            return False
        self.now, _, act = heapq.heappop(self._heap)
        self.num_done += 1
        act()
        return True


class Alarm:
    """Calls back when a deadline that keeps moving has come."""

    def __init__(self, timeline: Timeline, ring: Callable[[], None]) -> None:
        self._timeline = timeline
        self._ring = ring
        self._set_for: float | None = None

    def set(self, deadline: float | None) -> None:
        """Ring at `deadline` or earlier; a ring that is too early is for the owner to ignore."""
        if deadline is None or (self._set_for is not None and self._set_for <= deadline):
            return
        self._set_for = deadline
        self._timeline.at(deadline, lambda: self._go_off(deadline))

    def _go_off(self, deadline: float) -> None:
        if self._set_for == deadline:
            self._set_for = None
            self._ring()
