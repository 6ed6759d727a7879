"""Delays between tries. The random draw is passed in, so that the same seed gives the same delays."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first_s` to `most_s`, each between half and the whole of its step."""

    first_s: float = 0.05
    most_s: float = 1.0

    def delay_s(self, attempt: int, *, draw: float) -> float:
        """The delay before try number `attempt` (from 0); `draw` is uniform in [0, 1)."""
        step = min(self.most_s, self.first_s * float(2 ** min(attempt, 30)))
        return step * (0.5 + 0.5 * draw)
