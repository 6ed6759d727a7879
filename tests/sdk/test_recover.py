"""A node is lost with all its processes: another takes its ranks, and the other nodes' processes go on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Job, StartJob, free_port, is_alive, kill, until

SCRIPT = Path(__file__).parent / "scripts" / "repairable.py"
LINE = re.compile(r"rank (\d+) pid (\d+) weights (\w+)")
MEETING = ("--rdzv-conf", "join_timeout=60")

Start = Callable[..., Job]


@pytest.fixture
def node(run_job: StartJob, tmp_path: Path) -> Start:
    """Start a node of a job of two nodes with two workers each."""
    endpoint, marks = f"127.0.0.1:{free_port()}", tmp_path / "marks"
    marks.mkdir()

    def begin(*faults: str) -> Job:
        meeting = ("--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "j", *MEETING)
        return run_job("--nproc-per-node", 2, *meeting, SCRIPT, marks, *faults)

    return begin


@pytest.fixture(scope="module")
def undisturbed(run_job_for_all: StartJob, tmp_path_factory: pytest.TempPathFactory) -> str:
    job = run_job_for_all("--nproc-per-node", 4, SCRIPT, tmp_path_factory.mktemp("calm"))
    assert job.wait(within_s=150) == 0, job.story()
    return finals(job)[0][1]


def finals(*jobs: Job) -> dict[int, tuple[int, str]]:
    return {int(rank): (int(pid), digest) for job in jobs for rank, pid, digest in LINE.findall(job.out)}


def destroy(job: Job) -> None:
    """All of a node's processes at once."""
    for pid in job.processes():
        kill(pid)
    job.process.wait()


def own_workers(host: Job, node: Job) -> dict[int, int]:
    """Rank to pid of the workers of one node, from the events of the node that hosts the master."""
    mine = set(node.processes())
    started = [event["pids"] for event in host.events("workers_started")]
    return {int(rank): pid for pids in started for rank, pid in pids.items() if pid in mine}


@pytest.mark.parametrize("spare_is_there", [True, False], ids=["a spare", "one that comes later"])
def test_another_node_takes_the_ranks_of_a_lost_one(
    node: Start, undisturbed: str, tmp_path: Path, spare_is_there: bool
) -> None:
    slow = [f"{step}:0:pause" for step in range(30, 60)]
    host = node(*slow)
    host.wait_for("node_joined", within_s=60)
    second = node(*slow)
    host.wait_for("world_formed", within_s=60)
    third = node(*slow) if spare_is_there else None
    if third is not None:
        until(lambda: len(host.events("node_joined")) == 3, within_s=60, what="the spare joins", tell=host.story)
    until((tmp_path / "marks" / "0").exists, within_s=60, what="step 30", tell=host.story)
    survivors = own_workers(host, host)
    destroy(second)
    host.wait_for("node_lost", within_s=60)
    third = third or node(*slow)
    assert host.wait(within_s=150) == 0, host.story()
    assert third.wait(within_s=60) == 0, third.story()
    ends = finals(host, third)
    assert {digest for _, digest in ends.values()} == {undisturbed}
    assert len(ends) == 4
    assert {rank: pid for rank, (pid, _) in ends.items() if rank in survivors} == survivors
    assert len(survivors) == 2
    opened = host.events("incident_opened")
    assert [event["strategy"] for event in opened] == ["recover"]
    assert host.events("incident_closed")[-1]["verdict"] == "repaired"
    assert host.events("job_finished")[0]["restarts"] == 0
    assert not any(is_alive(pid) for pid in own_workers(host, second).values())
