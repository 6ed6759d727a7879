"""Any process of a cluster can be killed and pulled up again; without recovery, all end and say who was lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import START_S, Cluster, StartCluster, end_of
from jobs import Job, kill, until

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def undisturbed(cluster: StartCluster) -> str:
    it = cluster(3)
    (it.directory / "go").touch()
    it.scheduler()
    workers = [it.worker(rank) for rank in range(3)]
    assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0, 0], workers[0].story()
    return end_of(workers[0])[4]


def train_to_the_hold(it: Cluster) -> tuple[Job, list[Job]]:
    scheduler, workers = it.scheduler(), [it.worker(rank) for rank in range(3)]
    held = it.directory
    until(lambda: len(list(held.glob("held-*"))) == 3, within_s=START_S, what="all are held", tell=workers[0].story)
    return scheduler, workers


def test_without_recovery_a_lost_worker_ends_the_cluster_and_is_named(cluster: StartCluster) -> None:
    scheduler, workers = train_to_the_hold(cluster(3, MS_NODE_TIMEOUT=5))
    kill(workers[1].pid)
    assert scheduler.wait(within_s=30) != 0
    assert "node 1 is lost" in scheduler.err
    for survivor in (workers[0], workers[2]):
        assert survivor.wait(within_s=30) != 0
        assert "node 1 is lost" in survivor.err


def test_a_killed_worker_and_a_killed_scheduler_are_pulled_up_again(
    cluster: StartCluster, undisturbed: str, tmp_path: Path
) -> None:
    it = cluster(3, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path / "made" / "by itself")
    scheduler, workers = train_to_the_hold(it)
    kill(workers[1].pid)
    workers[1].process.wait()
    workers[1] = it.worker(1)
    workers[0].wait_for_output("incident 1 repaired", within_s=START_S)
    kill(scheduler.pid)
    scheduler.process.wait()
    workers[0].wait_for_output("connection refused", within_s=30)
    kill(workers[2].pid)
    workers[2].process.wait()
    scheduler = it.scheduler()
    workers[2] = it.worker(2)
    (it.directory / "go").touch()
    assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0, 0], workers[0].story()
    assert scheduler.wait(within_s=30) == 0, scheduler.story()
    ends = [end_of(worker) for worker in workers]
    assert [end[0] for end in ends] == [0, 1, 2]
    assert {end[4] for end in ends} == {undisturbed}
    assert [end[3] for end in ends] == [worker.pid for worker in workers]


def test_a_scheduler_killed_before_all_are_there_starts_again(cluster: StartCluster, tmp_path: Path) -> None:
    it = cluster(2, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path / "state")
    (it.directory / "go").touch()
    scheduler, first = it.scheduler(), it.worker(0)
    first.wait_for_output("waiting: 1 of 2 nodes are here", within_s=START_S)
    kill(scheduler.pid)
    scheduler.process.wait()
    scheduler, second = it.scheduler(), it.worker(1)
    assert [first.wait(within_s=START_S), second.wait(within_s=START_S)] == [0, 0], first.story()
    assert scheduler.wait(within_s=30) == 0
    assert not list((tmp_path / "state").iterdir()), "what a finished cluster needs no more is gone"
