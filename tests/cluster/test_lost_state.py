"""A scheduler that cannot keep or read its state ends with one line on what to do, and can then be started again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from clusters import SCRIPTS, START_S, Cluster, StartCluster
from jobs import Job

from holdfast.cluster.custody import Custody
from holdfast.errors import SpecError

QUICK = {"MS_RETRY_INTERVAL_LOWER": "0.2", "MS_RETRY_INTERVAL_UPPER": "0.4"}


def fill(disk: Path) -> Path:
    """The file that takes all the room."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def recovering(cluster: StartCluster, path: Path) -> Cluster:
    it = cluster(1, MS_SERVER_NUM=2, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=path, **QUICK)
    it.script = SCRIPTS / "serve.py"
    return it


def end_with_one_line(scheduler: Job) -> str:
    assert scheduler.wait(within_s=START_S) == 1, scheduler.story()
    [line] = [line for line in scheduler.err.splitlines() if not line.startswith("holdfast: ")]
    return line


def test_a_scheduler_on_a_full_disk_says_so_and_goes_on_when_it_is_started_again_with_room(
    cluster: StartCluster, small_disk: Path
) -> None:
    it = recovering(cluster, small_disk)
    scheduler, first = it.scheduler(), it.server(0)
    first.wait_for_output("1 of 2 servers", within_s=START_S)
    ballast = fill(small_disk)
    second = it.server(1)
    line = end_with_one_line(scheduler)
    assert line.startswith(f"holdfast scheduler: the journal {small_disk}/scheduler.db cannot be written: ")
    assert line.endswith("is full; free space there, or see what else keeps it from being used, and start again")
    ballast.unlink()
    it.scheduler()
    for server in (first, second):
        server.wait_for_output("0 of 1 nodes are here\n", within_s=START_S)
    assert "refused this node" not in first.err + second.err


def test_a_scheduler_that_finds_a_damaged_journal_says_so_and_begins_anew_without_it(
    cluster: StartCluster, tmp_path: Path
) -> None:
    journal = tmp_path / "scheduler.db"
    journal.write_bytes(b"\xff" * 4096)
    it = recovering(cluster, tmp_path)
    line = end_with_one_line(it.scheduler())
    assert line.startswith(f"holdfast scheduler: the journal {journal} cannot be opened: file is not a database; ")
    assert line.endswith("start with another recovery path, or remove it to begin anew")
    journal.unlink()
    it.scheduler()
    it.server(0).wait_for_output("1 of 2 servers", within_s=START_S)


def test_a_disk_that_is_full_from_the_start_is_named(small_disk: Path) -> None:
    fill(small_disk)
    custody = Custody(small_disk)
    with pytest.raises(SpecError, match=r"RECOVERY_PATH\): '.*/disk' .* no state can be kept there: No space left"):
        custody.keep_store_port(4711)
