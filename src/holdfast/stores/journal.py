"""The master's journal: every event that changed the job, with the time it was handled.

An event is durable before the actions that follow from it are performed, so a master that replays the journal
never knows less than what it has told anybody.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
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


class Journal:
    """An append-only list of (now, event) in SQLite."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS journal"
                " (seq INTEGER PRIMARY KEY, now REAL, wall REAL, kind TEXT, event BLOB)"
            )
        except sqlite3.Error as error:
            raise JobError(f"the journal {path} cannot be opened: {error}") from error

    def started_at(self, now: float) -> float:
        """When the job began: `now`, unless the journal knows better."""
        self._db.execute("INSERT OR IGNORE INTO journal (seq, now) VALUES (0, ?)", (now,))
        began: float = self._db.execute("SELECT now FROM journal WHERE seq = 0").fetchone()[0]
        return began

    def keep_settings(self, settings: dict[str, str]) -> None:
        self._db.execute("UPDATE journal SET event = ? WHERE seq = 0", (msgspec.msgpack.encode(settings),))

    def settings(self) -> dict[str, str]:
        """What the job began with."""
        (data,) = self._db.execute("SELECT event FROM journal WHERE seq = 0").fetchone()
        return msgspec.msgpack.decode(data, type=dict[str, str])

    def append(self, event: job.Event, *, now: float, wall: float) -> None:
        """`now` is what the core was told; `wall` is for people only."""
        row = (now, wall, type(event).__name__, msgspec.msgpack.encode(event))
        self._db.execute("INSERT INTO journal (now, wall, kind, event) VALUES (?, ?, ?, ?)", row)

    def replay(self) -> Iterator[tuple[float, float, job.Event]]:
        for now, wall, kind, data in self._db.execute(
            "SELECT now, wall, kind, event FROM journal WHERE seq > 0 ORDER BY seq"
        ):
            event: job.Event = msgspec.msgpack.decode(data, type=_EVENTS[kind])
            yield now, wall, event

    def close(self) -> None:
        self._db.close()
