"""Telling a rank that hangs from ranks that wait for it.

A rank is judged only inside guarded functions. One that works on its own and does not get on while a peer waits, in a
collective or for it to join a new world, hangs once its time is up; one that is stopped hangs wherever it is. The time
allowed follows the steps seen so far, between a floor and a ceiling. Of a script without the SDK only the steps of its
optimizers are seen: it hangs when no rank makes one for so long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEAVE_S = 2.0
"""For a rank that waits in a world to leave it when that is over."""
STEPS_BEFORE_TRUST = 3
"""The first steps compile, allocate and connect: until so many are seen, the ceiling is the limit."""


@dataclass(frozen=True, slots=True)
class View:
    """One rank as its beacon and the kernel show it."""

    step: int
    phase: str
    """`outside`, `working`, `waiting`, `joining`, or `stepping` where nothing but the end of each step is seen."""
    since: float
    stopped: bool
    generation: int = 0
    """The world it is in, or is about to join."""
    limit_s: float | None = None
    """How long this phase may take, where the script said so; None leaves it to the pace of the steps."""


@dataclass(frozen=True, slots=True)
class Limits:
    floor_s: float
    ceiling_s: float
    factor: float = 10.0


@dataclass(frozen=True, slots=True)
class Verdict:
    late: tuple[int, ...]
    """Ranks whose time is up."""
    waited_for: bool
    """Whether another rank is known to wait, in a collective or for the ranks of a new world."""


class Progress:
    """The pace of one node's ranks, from what is seen of them now and then."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None
        self._world = (0, 0.0)
        """The newest generation, and when it was first seen here."""
        self._stopped_at: dict[int, float] = {}
        """When each stopped rank was first seen so; it may have been idle for long before."""

    def allowed_s(self) -> float:
        """How long a rank may take for one phase."""
        limits = self._limits
        if self._first is None or self._last is None:
            return limits.ceiling_s
        num_steps = self._last[0] - self._first[0]
        if num_steps < STEPS_BEFORE_TRUST:
            return limits.ceiling_s
        pace_s = (self._last[1] - self._first[1]) / num_steps
        return min(limits.ceiling_s, max(limits.floor_s, limits.factor * pace_s))

    def judge(self, views: Mapping[int, View], *, now: float, generation: int = 0) -> Verdict:
        """Whose time is up, and whether somebody is known to wait for them; `generation` is the newest."""
        if generation > self._world[0]:
            self._world = (generation, now)
        self._note(views, now=now)
        self._stopped_at = {rank: self._stopped_at.get(rank, now) for rank, view in views.items() if view.stopped}
        since = {rank: view.since for rank, view in views.items() if view.phase == "working"} | self._stopped_at
        since |= self._hindmost(views)
        late = {rank for rank, at in since.items() if now >= at + self.limit_s(views[rank])}
        if now >= self._world[1] + LEAVE_S:
            late |= {rank for rank, view in views.items() if self.is_left_behind(view)}
        return Verdict(tuple(sorted(late)), any(view.phase in ("waiting", "joining") for view in views.values()))

    def _hindmost(self, views: Mapping[int, View]) -> dict[int, float]:
        """Where only steps are seen: those who made the fewest, since the last step that anybody made."""
        stepping = {rank: view for rank, view in views.items() if view.phase == "stepping"}
        fewest = min((view.step for view in stepping.values()), default=0)
        newest = max((view.since for view in stepping.values()), default=0.0)
        return {rank: newest for rank, view in stepping.items() if view.step == fewest}

    def is_left_behind(self, view: View) -> bool:
        """Whether it waits for ranks of a world that is over: such a wait is ended within milliseconds, or never."""
        return view.generation < self._world[0] and view.phase in ("waiting", "joining")

    def limit_s(self, view: View) -> float:
        """How long a rank may stay as it is; one that is stopped does nothing that a section's limit is for."""
        return self.allowed_s() if view.stopped or view.limit_s is None else view.limit_s

    def _note(self, views: Mapping[int, View], *, now: float) -> None:
        if not views:
            return
        step = min(view.step for view in views.values())
        if self._first is None or step < self._first[0]:
            self._first = (step, now)
        if self._last is None or step > self._last[0]:
            self._last = (step, now)
