"""When nobody is left who holds the state, all go back to the newest checkpoint that all have."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import START_S, Cluster, StartCluster, end_of
from jobs import Job, kill, until

pytestmark = pytest.mark.timeout(400)

NUM_WORKERS = 2


@pytest.fixture
def held(cluster: StartCluster, tmp_path: Path) -> tuple[Cluster, Job, list[Job]]:
    """A cluster that has saved some steps, its scheduler and its workers."""
    recovery = {"MS_ENABLE_RECOVERY": 1, "MS_RECOVERY_PATH": tmp_path / "state", "MS_NODE_TIMEOUT": 5}
    it = cluster(NUM_WORKERS, **recovery)
    scheduler, workers = it.scheduler(), [it.worker(rank) for rank in range(NUM_WORKERS)]
    marks = lambda: len(list(it.directory.glob("held-*"))) == NUM_WORKERS  # noqa: E731
    until(marks, within_s=START_S, what="all are held", tell=workers[0].story)
    return it, scheduler, workers


def lose(*processes: Job) -> None:
    for process in processes:
        kill(process.pid)
    for process in processes:
        process.process.wait()


@pytest.mark.parametrize("with_scheduler", [False, True], ids=["workers", "workers and scheduler"])
def test_all_are_lost_and_pulled_up_again(
    held: tuple[Cluster, Job, list[Job]], weights_of_two: str, with_scheduler: bool
) -> None:
    it, scheduler, workers = held
    lose(*workers, *([scheduler] if with_scheduler else []))
    (it.directory / "go").touch()
    if with_scheduler:
        scheduler = it.scheduler()
    workers = [it.worker(rank) for rank in range(NUM_WORKERS)]
    assert [worker.wait(within_s=START_S) for worker in workers] == [0] * NUM_WORKERS, workers[0].story()
    assert scheduler.wait(within_s=30) == 0, scheduler.story()
    assert "holdfast: resumed at step" in workers[0].err
    assert {end_of(worker)[4] for worker in workers} == {weights_of_two}
