"""How far a worker is, in shared memory: written with one store per phase, read by the agent, no messages.

Layout (little endian, one page per worker): generation, step, phase, when the phase began in nanoseconds of the
machine's monotonic clock, and how long it may take in seconds, or 0 where the pace of the steps decides.
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


class Beacon:
    """The writing side, in the worker."""

    def __init__(self, path: str | None) -> None:
        self._map: mmap.mmap | None = None
        self.generation = 0
        self.step = 0
        self._phase, self._since_ns, self._limit_s = Phase.OUTSIDE, 0, 0.0
        if path is not None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(fd, RECORD.size)
            self._map = mmap.mmap(fd, RECORD.size)
            os.close(fd)

    def show(self, phase: Phase, *, limit_s: float = 0.0) -> None:
        self._phase, self._since_ns, self._limit_s = phase, time.monotonic_ns(), limit_s
        self._write(phase, self._since_ns, limit_s)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait for other ranks; afterwards the phase goes on, anew unless it has a limit of its own."""
        self._write(Phase.WAITING, time.monotonic_ns(), 0.0)
        try:
            yield
        finally:
            self._write(self._phase, self._since_ns if self._limit_s else time.monotonic_ns(), self._limit_s)

    def _write(self, phase: Phase, since_ns: int, limit_s: float) -> None:
        if self._map is not None:
            RECORD.pack_into(self._map, 0, self.generation, self.step, phase, since_ns, limit_s)


def read(path: Path) -> Sample | None:
    """The last thing a worker showed; None if it has none yet."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < RECORD.size:
        return None
    generation, step, phase, since_ns, limit_s = RECORD.unpack_from(data)
    if since_ns == 0:
        return None
    return Sample(generation, step, Phase(phase), since_ns / 1e9, limit_s or None)
