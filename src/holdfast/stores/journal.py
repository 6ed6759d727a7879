"""The master's journal: every event that changed the job, with the time it was handled.

An event is durable before the actions that follow from it are performed, so a master that replays the journal
never knows less than what it has told anybody.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.core import job
from holdfast.errors import JobError

_EVENTS: dict[str, type[job.Event]] = {
    event.__name__: event
    for event in (
        job.NodeRegistered,
        job.StatusReported,
        job.AgentDied,
        job.EndRequested,
        job.MasterStarted,
        job.Inherited,
        job.TimePassed,
    )
}

PRIMARY = 0xFF
"""The part of an error's code that says what kind it is."""
DISK_TROUBLES = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_NOMEM,
)
"""Errors after which the file holds what it held before."""
IF_THE_DISK = "free space there, or see what else keeps it from being used, and start again"
IF_THE_FILE = "it is damaged or of another version: start with another recovery path, or remove it to begin anew"


class Journal:
    """An append-only list of (now, event) in SQLite; whatever is wrong with it raises a JobError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._translated("opened"):
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS journal"
                " (seq INTEGER PRIMARY KEY, now REAL, wall REAL, kind TEXT, event BLOB)"
            )

    def started_at(self, now: float) -> float:
        """When the job began: `now`, unless the journal knows better."""
        with self._translated("written"):
            self._db.execute("INSERT OR IGNORE INTO journal (seq, now) VALUES (0, ?)", (now,))
        with self._translated("read"):
            row = self._db.execute("SELECT now FROM journal WHERE seq = 0").fetchone()
            return msgspec.convert(row, tuple[float])[0]

    def keep_settings(self, settings: dict[str, str]) -> None:
        with self._translated("written"):
            self._db.execute("UPDATE journal SET event = ? WHERE seq = 0", (msgspec.msgpack.encode(settings),))

    def settings(self) -> dict[str, str]:
        """What the job began with."""
        with self._translated("read"):
            row = self._db.execute("SELECT event FROM journal WHERE seq = 0").fetchone()
            (data,) = msgspec.convert(row, tuple[bytes])
            return msgspec.msgpack.decode(data, type=dict[str, str])

    def append(self, event: job.Event, *, now: float, wall: float) -> None:
        """`now` is what the core was told; `wall` is for people only."""
        row = (now, wall, type(event).__name__, msgspec.msgpack.encode(event))
        with self._translated("written"):
            self._db.execute("INSERT INTO journal (now, wall, kind, event) VALUES (?, ?, ?, ?)", row)

    def replay(self) -> Iterator[tuple[float, float, job.Event]]:
        with self._translated("read"):
            for row in self._db.execute("SELECT now, wall, kind, event FROM journal WHERE seq > 0 ORDER BY seq"):
                now, wall, kind, data = msgspec.convert(row, tuple[float, float, str, bytes])
                yield now, wall, _decode(kind, data)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _translated(self, done: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & PRIMARY
            advice = IF_THE_DISK if code in DISK_TROUBLES else IF_THE_FILE
            raise JobError(f"the journal {self._path} cannot be {done}: {error}; {advice}") from error
        except msgspec.MsgspecError as error:
            raise JobError(f"the journal {self._path} cannot be {done}: {error}; {IF_THE_FILE}") from error


def _decode(kind: str, data: bytes) -> job.Event:
    if kind not in _EVENTS:
        raise msgspec.ValidationError(f"{kind!r} is no event of this version")
    event: job.Event = msgspec.msgpack.decode(data, type=_EVENTS[kind])
    return event
