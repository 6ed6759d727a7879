"""The log of finished steps: written by each worker of the workload, read by the harness."""

import os
import struct
from pathlib import Path
from time import monotonic
from typing import NamedTuple

_FORMAT = struct.Struct("<qdq")


class Record(NamedTuple):
    step: int
    at: float
    """Seconds of the monotonic clock, which all processes of a machine share."""
    pid: int


class StepWriter:
    """Appends one record per step. It costs one small `write`, and a kill cannot tear a record."""

    def __init__(self, path: Path) -> None:
        self._pid = os.getpid()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def finished(self, step: int) -> None:
        os.write(self._file, _FORMAT.pack(step, monotonic(), self._pid))


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
