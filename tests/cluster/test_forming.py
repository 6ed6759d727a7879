"""Processes that nobody launched find each other, or say why not."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clusters import START_S, StartCluster, end_of
from jobs import Job
from machines import obstacle

pytestmark = pytest.mark.timeout(400)


def listening(pid: int) -> list[str]:
    """The addresses at which a process listens."""
    sockets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets.add(os.readlink(fd))
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    own = [row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    # Each four bytes of an address are a number of this machine.
    words = [[int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)] for text in own]
    return [str(ipaddress.ip_address(b"".join(each))) for each in words]


def test_numbers_are_ranks_and_a_second_holder_and_one_out_of_range_are_refused(cluster: StartCluster) -> None:
    it = cluster(2, MS_SCHED_HOST="::1")
    scheduler, first = it.scheduler(), it.worker(1)
    scheduler_story = scheduler.story
    first.wait_for_output("waiting: 1 of 2 nodes are here", within_s=START_S)
    twin, far = it.worker(1), it.worker(2)
    assert twin.wait(within_s=START_S) != 0
    assert "node id '1' is held by pid" in twin.err
    assert far.wait(within_s=START_S) != 0
    assert "node id 2 is out of range: 2 workers have ids below 2" in far.err
    (it.directory / "go").touch()
    other = it.worker(0)
    assert [first.wait(within_s=START_S), other.wait(within_s=START_S)] == [0, 0], scheduler_story()
    assert [end_of(first)[0], end_of(other)[0]] == [1, 0]
    assert scheduler.wait(within_s=30) == 0


def test_the_scheduler_may_come_last_and_ranks_go_by_address_and_one_worker_too_many_is_refused(
    cluster: StartCluster, tmp_path: Path
) -> None:
    table = tmp_path / "table.json"
    table.write_text("{")
    it = cluster(2, RANK_TABLE_FILE=table)
    workers = [it.worker(node, MS_WORKER_IP=address) for node, address in (("a", "127.0.0.10"), ("b", "127.0.0.9"))]
    workers[0].wait_for_output("no master at 127.0.0.1", within_s=START_S)
    scheduler = it.scheduler()
    it.wait_for_hold(2)
    assert set(listening(scheduler.pid)) == {"127.0.0.1"}, "nothing of it is for other networks"
    extra = it.worker("c")
    assert extra.wait(within_s=START_S) != 0
    assert "2 nodes have joined already, and this is one too many" in extra.err
    (it.directory / "go").touch()
    assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0]
    assert scheduler.wait(within_s=30) == 0
    ends = [end_of(worker) for worker in workers]
    assert [end[:3] for end in ends] == [(1, 1, 2), (0, 0, 2)], "by the value of the address, not the id"
    assert len({end[4] for end in ends}) == 1
    trained = {path.name for path in it.directory.glob("training-*")}
    assert trained == {f"training-{end[3]}" for end in ends}, "no line of the script runs in the scheduler"
    assert f"RANK_TABLE_FILE={table} is not used, ranks are given automatically" in scheduler.err


def test_too_few_end_in_time_and_say_who_is_missing(cluster: StartCluster) -> None:
    limit_s, prompt_s = 25.0, 10.0
    it = cluster(3, MS_TOPO_TIMEOUT=limit_s)
    processes = [it.scheduler(), it.worker(0), it.worker(2)]
    processes[1].wait_for_output("of 3 nodes are here", within_s=START_S)
    story = it.follow()
    for process in processes:
        assert process.wait(within_s=START_S) != 0
    ended_at = datetime.now(UTC)
    for process in processes:
        assert "no world within 25 s: 2 of 3 nodes are here" in process.err
        assert "missing: 1" in process.err
    finished = story.first("job_finished")
    assert limit_s <= finished["elapsed_s"] <= limit_s + prompt_s
    assert (ended_at - datetime.fromisoformat(finished["at"])).total_seconds() <= prompt_s


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_nobody_asks_a_name_server(unanswered: Job) -> None:
    """One that does not answer would keep each process waiting for seconds."""
    said = ["ended with [0, 0, 0]", "asked by the cluster: 0", "asked by others: 1"]
    assert unanswered.out.splitlines() == said, unanswered.err
