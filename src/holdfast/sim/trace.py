"""What happened in a simulation, and how often each rare path was taken."""

from __future__ import annotations

from collections import Counter

from holdfast.sim.timeline import Timeline

LINES_SHOWN = 60
"""How much of the story a broken invariant shows."""


class Trace:
    """One line per event worth telling."""

    def __init__(self, seed: int, timeline: Timeline) -> None:
        self.seed = seed
        self.lines: list[str] = []
        self.reached: Counter[str] = Counter()
        self._timeline = timeline

    def say(self, text: str) -> None:
        self.lines.append(f"{self._timeline.now:9.4f}  {text}")

    def reach(self, path: str) -> None:
        """Count that a rare path was taken: a green run that never took it proves nothing about it."""
        self.reached[path] += 1

    def require(self, holds: bool, claim: str) -> None:
        if holds:
            return
        story = "\n".join(self.lines[-LINES_SHOWN:])
        raise AssertionError(f"seed {self.seed}, t={self._timeline.now:.4f}: {claim}\n{story}")
