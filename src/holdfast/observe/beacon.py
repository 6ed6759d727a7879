"""How far a worker is, in shared memory: written with one store per phase, read by the agent, no messages.

Layout (little endian, one page per worker): generation, step, phase, when the phase began in nanoseconds of the
machine's monotonic clock, and how long it may take in seconds, or 0 where the pace of the steps decides. Behind it, as
of the last step that was committed: how many were, and what they have cost in nanoseconds of each kind.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

RECORD = struct.Struct("<qqqqd")
COSTS = struct.Struct("<qqqqq")

STACK_SIGNAL = signal.SIGRTMIN + 9
"""Makes a worker write its Python stack to its crash file, whatever it is doing."""


class Phase(IntEnum):
    OUTSIDE = 0
    """Between guarded functions: nobody judges how long that takes."""
    WORKING = 1
    """In a guarded function, on its own."""
    WAITING = 2
    """In a collective: it waits for others."""
    JOINING = 3
    """Waiting for the other ranks of a new world."""
    STEPPING = 4
    """A script without the SDK: its optimizers make steps, and more is not known."""


class Cost(IntEnum):
    """What the time of a step goes to."""

    COMPUTE = 0
    DATA = 1
    OUTSIDE = 2
    """Between two steps."""
    WAIT = 3
    """In collectives."""
    NOTHING = 4
    """Joining a world, saving a checkpoint, evaluating: not what every step costs."""


COST_OF = {Phase.OUTSIDE: Cost.OUTSIDE, Phase.WORKING: Cost.COMPUTE, Phase.STEPPING: Cost.NOTHING}
"""Of phases that have no limit of their own; whatever else is shown costs nothing."""


def _nothing() -> None:
    pass


forget_steps: Callable[[], None] = _nothing
"""Ends the showing of optimizer steps in this process."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one read of a beacon shows."""

    generation: int
    step: int
    phase: Phase
    since_s: float
    limit_s: float | None
    num_steps: int
    """That were committed."""
    costs_s: tuple[float, float, float, float]
    """What these have cost, by kind."""


class Beacon:
    """The writing side, in the worker."""

    def __init__(self, path: str | None) -> None:
        self._map: mmap.mmap | None = None
        self.generation = 0
        self.step = 0
        self._phase, self._since_ns, self._limit_s = Phase.OUTSIDE, 0, 0.0
        self._cost, self._cost_since_ns = Cost.NOTHING, time.monotonic_ns()
        self._costs_ns = [0] * len(Cost)
        self._num_steps = 0
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            size = RECORD.size + COSTS.size
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
            os.close(fd)

    def show(self, phase: Phase, *, limit_s: float = 0.0, cost: Cost | None = None) -> None:
        self._phase, self._since_ns, self._limit_s = phase, time.monotonic_ns(), limit_s
        if cost is None:
            cost = Cost.NOTHING if limit_s else COST_OF.get(phase, Cost.NOTHING)
        self._charge(cost, self._since_ns)
        self._write(phase, self._since_ns, limit_s)

    def end_step(self) -> None:
        """A step is committed: from now on what it has cost can be seen."""
        self._charge(self._cost, time.monotonic_ns())
        self._num_steps += 1
        if self._map is not None:
            COSTS.pack_into(self._map, RECORD.size, self._num_steps, *self._costs_ns[: Cost.NOTHING])

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Data is being loaded: no other phase, but another cost."""
        before = self._cost
        self._charge(Cost.DATA, time.monotonic_ns())
        try:
            yield
        finally:
            self._charge(before, time.monotonic_ns())

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait for other ranks; afterwards the phase goes on, anew unless it has a limit of its own."""
        before, began_ns = self._cost, time.monotonic_ns()
        self._charge(Cost.NOTHING if before is Cost.NOTHING else Cost.WAIT, began_ns)
        self._write(Phase.WAITING, began_ns, 0.0)
        try:
            yield
        finally:
            ended_ns = time.monotonic_ns()
            self._charge(before, ended_ns)
            self._write(self._phase, self._since_ns if self._limit_s else ended_ns, self._limit_s)

    def _charge(self, cost: Cost, now_ns: int) -> None:
        """The time since the last change was one cost; from now on it is another."""
        self._costs_ns[self._cost] += now_ns - self._cost_since_ns
        self._cost, self._cost_since_ns = cost, now_ns

    def _write(self, phase: Phase, since_ns: int, limit_s: float) -> None:
        if self._map is not None:
            RECORD.pack_into(self._map, 0, self.generation, self.step, phase, since_ns, limit_s)


def read(path: Path) -> Sample | None:
    """The last thing a worker showed; None if it has none yet."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < RECORD.size + COSTS.size:
        return None
    generation, step, phase, since_ns, limit_s = RECORD.unpack_from(data)
    if since_ns == 0:
        return None
    num_steps, *costs_ns = COSTS.unpack_from(data, RECORD.size)
    compute, loading, outside, wait = (cost / 1e9 for cost in costs_ns)
    costs_s = (compute, loading, outside, wait)
    return Sample(generation, step, Phase(phase), since_ns / 1e9, limit_s or None, num_steps, costs_s)
