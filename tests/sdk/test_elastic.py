"""Nodes go and come: the others go on with the same global batch, in the same processes, and no sample is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import Job, StartJob, free_port, kill, until

SCRIPT = Path(__file__).parent / "scripts" / "counting.py"
CONF = "keep_alive_interval=0.5,keep_alive_max_attempt=4,join_timeout=60,last_call_timeout=1"
START_S = 120.0


@pytest.mark.timeout(400)
def test_the_world_shrinks_and_grows_and_every_sample_counts_once_an_epoch(run_job: StartJob, tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"

    def node() -> Job:
        meeting = ("--nnodes", "2:4", "--rdzv-endpoint", endpoint, "--rdzv-id", "j", "--rdzv-conf", CONF)
        return run_job("--nproc-per-node", 1, *meeting, SCRIPT, tmp_path, "endless")

    def train_as(size: int) -> None:
        seen = newest_step(tmp_path)
        until(
            lambda: any(step > seen + 2 for step in steps(tmp_path, size)),
            within_s=START_S,
            what=f"{size} workers train",
            tell=host.story,
        )

    host = node()
    host.wait_for("node_joined", within_s=START_S)
    others = [node() for _ in range(3)]
    train_as(4)
    survivors = {int(rank): pid for event in host.events("workers_started") for rank, pid in event["pids"].items()}
    destroy(others.pop())
    train_as(3)
    destroy(others.pop())
    train_as(2)
    others += [node(), node()]
    train_as(4)
    (tmp_path / "enough").touch()
    assert host.wait(within_s=START_S) == 0, host.story()
    assert [other.wait(within_s=30) for other in others] == [0, 0, 0]
    ends = [end for job in (host, *others) for end in re.findall(r"uses \{\d+\.0: 272\}", job.out)]
    assert len(ends) == 1, host.story()
    assert {event["strategy"] for event in host.events("incident_opened")} == {"elastic-training"}
    assert {event["verdict"] for event in host.events("incident_closed")} == {"repaired"}
    assert host.events("job_finished")[0]["restarts"] == 0
    started = [pid for event in host.events("workers_started") for pid in event["pids"].values()]
    assert len(started) == len(set(started)) == 6, "four at first and two newcomers"
    assert set(survivors.values()) < set(started)


def steps(directory: Path, size: int) -> list[int]:
    return [int(path.name.split()[1]) for path in directory.glob(f"step * of {size}")]


def newest_step(directory: Path) -> int:
    return max((int(path.name.split()[1]) for path in directory.glob("step *")), default=0)


def destroy(job: Job) -> None:
    """All of a node's processes at once."""
    for pid in job.processes():
        kill(pid)
    job.process.wait()
