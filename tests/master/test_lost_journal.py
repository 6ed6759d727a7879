"""A journal that cannot be written or read ends its master, with one line that says what to do."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from jobs import PYTHON, clean_env

from holdfast.core import job as core
from holdfast.errors import JobError
from holdfast.master.driver import Driver
from holdfast.master.main import MasterSettings, serve
from holdfast.spec.job import JobRules
from holdfast.stores.journal import Journal

RULES = JobRules(job_id="j", join_timeout_s=0.1)
"""Nobody joins: soon there is an event."""

pytestmark = pytest.mark.timeout(60)

FULL = "database or disk is full; free space there, or see what else keeps it from being used, and start again"
LOST = "it is damaged or of another version: start with another recovery path, or remove it to begin anew"
REFUSAL = "CREATE TRIGGER refusal BEFORE INSERT ON journal WHEN NEW.kind > '' BEGIN SELECT RAISE(ABORT, 'no'); END"
"""No event can be written, but the beginning can."""


def restore(path: Path) -> Driver:
    with closing(Journal(path)) as journal:
        return Driver.restore(lambda now: core.Job(RULES, now=now), journal=journal)


def spoil(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A journal that a job has begun, with an event in it."""
    path = tmp_path / "journal.db"
    with closing(Journal(path)) as journal:
        Driver.restore(lambda now: core.Job(RULES, now=now), journal=journal)
        journal.append(core.TimePassed(), now=1.0, wall=2.0)
    restore(path)
    return path


def test_a_full_disk_is_named_and_what_was_written_before_is_there_once_it_has_room(small_disk: Path) -> None:
    path, ballast = small_disk / "journal.db", small_disk / "ballast"
    with closing(Journal(path)) as journal:
        journal.append(core.TimePassed(), now=1.0, wall=2.0)
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(JobError) as raised:
            journal.append(core.TimePassed(), now=2.0, wall=3.0)
        assert str(raised.value) == f"the journal {path} cannot be written: {FULL}"
    ballast.unlink()
    with closing(Journal(path)) as journal:
        assert list(journal.replay()) == [(1.0, 2.0, core.TimePassed())]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE journal SET kind = 'Coronation' WHERE seq = 1", "'Coronation' is no event of this version"),
        ("UPDATE journal SET kind = NULL WHERE seq = 1", "Expected `str`, got `null`"),
        ("UPDATE journal SET event = x'c1' WHERE seq = 1", "MessagePack data is malformed"),
        ("UPDATE journal SET event = x'80', kind = 'AgentDied' WHERE seq = 1", "missing required field `node`"),
        ("UPDATE journal SET event = NULL WHERE seq = 1", "Expected `bytes`, got `null`"),
        ("UPDATE journal SET now = NULL WHERE seq = 1", "Expected `float`, got `null`"),
        ("UPDATE journal SET now = 'noon' WHERE seq = 0", "Expected `float`, got `str`"),
        ("UPDATE journal SET event = NULL WHERE seq = 0", "Expected `bytes`, got `null`"),
        ("UPDATE journal SET event = x'01' WHERE seq = 0", "Expected `object`, got `int`"),
        ("ALTER TABLE journal RENAME COLUMN event TO events", "no such column: event"),
    ],
)
def test_a_row_that_makes_no_sense_is_said_to_be_of_another_version(written: Path, statement: str, why: str) -> None:
    spoil(written, statement)
    with pytest.raises(JobError) as raised:
        restore(written)
    assert str(raised.value).startswith(f"the journal {written} cannot be read: ")
    assert why in str(raised.value)
    assert str(raised.value).endswith(LOST)


@pytest.mark.parametrize("offset", [0, 4096], ids=["head", "page"])
def test_a_damaged_file_is_named_and_once_it_is_removed_a_job_begins(written: Path, offset: int) -> None:
    with written.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 4096)
    with pytest.raises(JobError) as raised:
        restore(written)
    assert str(raised.value).startswith(f"the journal {written} cannot be ")
    assert str(raised.value).endswith(LOST)
    written.unlink()
    restore(written)


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"gone/journal\.db cannot be opened: unable to open .*see what else keeps it"):
        Journal(tmp_path / "gone" / "journal.db")


def test_a_master_that_serves_raises_what_the_journal_raised_and_no_group(written: Path) -> None:
    spoil(written, "DELETE FROM journal WHERE seq > 0")
    spoil(written, REFUSAL)
    listener = socket.create_server(("127.0.0.1", 0))
    settings = MasterSettings(rules=RULES, listen_fd=listener.detach(), journal=str(written))
    with pytest.raises(JobError, match="cannot be written: no; it is damaged"):
        asyncio.run(asyncio.wait_for(serve(settings, tied=False), 30.0))


def test_the_masters_process_says_one_line(written: Path) -> None:
    spoil(written, "DELETE FROM journal WHERE seq > 0")
    spoil(written, REFUSAL)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = {"rules": msgspec.to_builtins(RULES), "listen_fd": listener.fileno(), "journal": str(written)}
        process = subprocess.Popen(
            [PYTHON, "-P", "-m", "holdfast.master.main"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
            env=clean_env(),
        )
        assert process.stdin is not None
        assert process.stderr is not None
        with process:
            # Its input stays open: its end would end the master.
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()
            said = process.stderr.read().decode()
    assert process.returncode == 1
    assert said == f"holdfast master: the journal {written} cannot be written: no; {LOST}\n"
