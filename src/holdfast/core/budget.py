"""How many failures a job may have: a count within a sliding window, or in all."""

from __future__ import annotations

from collections import deque


class Budget:
    """Allows `limit` failures within any `window_s`; without a window, so many and no more."""

    def __init__(self, limit: int, *, window_s: float | None) -> None:
        self.limit = limit
        self.window_s = window_s
        self._spent_at: deque[float] = deque()

    def spend(self, *, now: float) -> bool:
        """Take one from the budget; False when there is none left."""
        self._forgive(now=now)
        if len(self._spent_at) >= self.limit:
            return False
        self._spent_at.append(now)
        return True

    def used(self, *, now: float) -> int:
        self._forgive(now=now)
        return len(self._spent_at)

    def _forgive(self, *, now: float) -> None:
        while self.window_s is not None and self._spent_at and self._spent_at[0] <= now - self.window_s:
            self._spent_at.popleft()
