"""When nobody is left who holds the state, all go back to the newest checkpoint that all have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clusters import START_S, Cluster, StartCluster, end_of
from jobs import Job, kill, until

pytestmark = pytest.mark.timeout(400)

NUM_WORKERS = 2


def lose(*processes: Job) -> None:
    for process in processes:
        kill(process.pid)
    for process in processes:
        process.process.wait()


def pull_up(it: Cluster) -> list[Job]:
    """All workers, once the scheduler has told from where they go on, as the first of them says it."""
    workers = [it.worker(rank) for rank in range(NUM_WORKERS)]
    workers[0].wait_for_output("resumed at step", within_s=START_S)
    verdict, step = re.findall(r"^holdfast: (resumed at step (\d+) .*)$", workers[0].err, re.MULTILINE)[0]
    it.follow().first("resumed", step=int(step), verdict=verdict)
    return workers


def test_all_are_lost_and_pulled_up_again_without_the_scheduler_and_with_it(
    cluster: StartCluster, weights_of_two: str, tmp_path: Path
) -> None:
    recovery = {"MS_ENABLE_RECOVERY": 1, "MS_RECOVERY_PATH": tmp_path / "state", "MS_NODE_TIMEOUT": 5}
    it = cluster(NUM_WORKERS, **recovery)
    scheduler, workers = it.scheduler(), [it.worker(rank) for rank in range(NUM_WORKERS)]
    it.wait_for_hold(NUM_WORKERS)
    saved = it.saved(rank=1)
    lose(*workers)
    workers = pull_up(it)
    until(lambda: it.saved(rank=1) - saved, within_s=60, what="another checkpoint", tell=workers[1].story)
    lose(*workers, scheduler)
    scheduler = it.scheduler()
    workers = pull_up(it)
    (it.directory / "go").touch()
    assert [worker.wait(within_s=START_S) for worker in workers] == [0] * NUM_WORKERS, workers[0].story()
    assert scheduler.wait(within_s=30) == 0, scheduler.story()
    assert {end_of(worker)[4] for worker in workers} == {weights_of_two}
