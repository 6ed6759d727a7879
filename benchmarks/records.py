"""The logs of steps: written by each worker of a workload, read by the harness."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

_FORMAT = struct.Struct("<qdq")
_COUNT = struct.Struct("<q")


class Record(NamedTuple):
    step: int
    at: float
    """Seconds of the monotonic clock, which all processes of a machine share."""
    pid: int


class Attempt(NamedTuple):
    """A step that was begun, with the samples it uses."""

    step: int
    at: float
    pid: int
    ids: tuple[int, ...]


class StepWriter:
    """Appends one record per step. It costs one small `write`, and a kill cannot tear a record."""

    def __init__(self, path: Path) -> None:
        self._pid = os.getpid()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def finished(self, step: int) -> None:
        os.write(self._file, _FORMAT.pack(step, monotonic(), self._pid))


class AttemptWriter:
    """The same for steps that are begun."""

    def __init__(self, path: Path) -> None:
        self._pid = os.getpid()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def began(self, step: int, ids: Sequence[int]) -> None:
        head = _FORMAT.pack(step, monotonic(), self._pid) + _COUNT.pack(len(ids))
        os.write(self._file, head + struct.pack(f"<{len(ids)}q", *ids))


class StepReader:
    """Follows a log that may not exist yet; restarted workers append to the same one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: list[Record] = []

    def poll(self) -> list[Record]:
        """All records so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(len(self.records) * _FORMAT.size)
                self.records += map(Record._make, _FORMAT.iter_unpack(file.read()))
        return self.records


def read_attempts(path: Path) -> list[Attempt]:
    """All attempts of a job that has ended."""
    data, offset = path.read_bytes(), 0
    found = []
    while offset < len(data):
        step, at, pid = _FORMAT.unpack_from(data, offset)
        (count,) = _COUNT.unpack_from(data, offset + _FORMAT.size)
        offset += _FORMAT.size + _COUNT.size
        found.append(Attempt(step, at, pid, struct.unpack_from(f"<{count}q", data, offset)))
        offset += 8 * count
    return found
