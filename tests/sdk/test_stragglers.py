"""A rank that holds up the others is found in a real training, and its node makes way for a spare one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import Job, StartJob, free_port, kill, until

SCRIPT = Path(__file__).parent / "scripts" / "steady.py"
CONF = "keep_alive_interval=0.5,keep_alive_max_attempt=20,last_call_timeout=0.2"
START_S = 90.0
HoldUp = Callable[[int, Path], contextlib.AbstractContextManager[None]]
WINDOWS_S = 90.0
"""For a straggler to be believed: three windows of at least five seconds, and whatever a busy machine adds."""


@contextlib.contextmanager
def slow_data(pid: int, marks: Path) -> Iterator[None]:
    """Let a process take long to load its data."""
    (marks / f"slow-{pid}").touch()
    yield


@contextlib.contextmanager
def slow_compute(pid: int, _marks: Path) -> Iterator[None]:
    """Let a process run for a quarter of the time."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set() and kill(pid, signal.SIGSTOP):
            over.wait(0.02)
            kill(pid, signal.SIGCONT)
            over.wait(0.007)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("holding_up", "cause", "words"),
    [(slow_compute, "compute", "by computing"), (slow_data, "data", "by loading data")],
    ids=["compute", "data"],
)
def test_a_straggler_is_found_and_its_node_replaced(
    run_job: StartJob, tmp_path: Path, holding_up: HoldUp, cause: str, words: str
) -> None:
    endpoint = f"127.0.0.1:{free_port()}"

    def node(*flags: object) -> Job:
        meeting = ("--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-conf", CONF, "--hang-timeout", "off")
        return run_job(*meeting, *flags, SCRIPT, tmp_path)

    host = node("--node-rank", 0, "--exclude-straggler")
    host.wait_for("node_joined", within_s=START_S)
    slow = node()
    started = until(lambda: started_on(host, slow), within_s=START_S, what="two workers", tell=host.story)
    spare = node()
    until(lambda: len(host.events("node_joined")) == 3, within_s=START_S, what="a spare", tell=host.story)
    with holding_up(started, tmp_path):
        found = host.wait_for("straggler_found", within_s=WINDOWS_S)
        assert slow.wait() == 1, slow.story()
    assert (found["rank"], found["cause"], found["decision"]) == (1, cause, "replaced"), host.story()
    assert "rank 1 on " in slow.err
    assert f"holds up the others {words}" in slow.err
    slow.expect_nothing_left()
    closed = host.wait_for("incident_closed", within_s=START_S)
    assert closed["verdict"] == "repaired"
    (tmp_path / "stop").touch()
    assert [host.wait(), spare.wait()] == [0, 0], host.story()
    assert "rank 1 ends" in spare.out
    assert len(host.events("straggler_found")) == 1, "nobody else is accused"
    assert host.events("job_finished")[0]["restarts"] == 0


def started_on(host: Job, other: Job) -> int | None:
    """The worker of the other node, once it runs."""
    mine = set(other.processes())
    pids = [pid for entry in host.events("workers_started") for pid in entry["pids"].values()]
    return next((pid for pid in pids if pid in mine), None)
