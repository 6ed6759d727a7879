"""Processes that nobody launched find each other, or say why not."""

from __future__ import annotations

import pytest
from clusters import START_S, StartCluster, end_of
from jobs import until

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    ("scheduler_first", "host"), [(True, "127.0.0.1"), (False, "::1")], ids=["scheduler first", "scheduler last, IPv6"]
)
def test_they_find_each_other_in_any_order(cluster: StartCluster, scheduler_first: bool, host: str) -> None:
    it = cluster(3, MS_SCHED_HOST=host)
    (it.directory / "go").touch()
    scheduler = it.scheduler() if scheduler_first else None
    workers = [it.worker() for _ in range(3)]
    scheduler = scheduler or it.scheduler()
    assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0, 0], workers[0].story()
    assert scheduler.wait(within_s=30) == 0, scheduler.story()
    ends = [end_of(worker) for worker in workers]
    assert sorted(end[0] for end in ends) == [0, 1, 2]
    assert sorted(end[1] for end in ends) == [0, 1, 2]
    assert {end[2] for end in ends} == {3}
    assert len({end[4] for end in ends}) == 1
    trained = {path.name for path in it.directory.glob("training-*")}
    assert trained == {f"training-{end[3]}" for end in ends}, "no line of the script runs in the scheduler"


def test_numbers_are_ranks_and_a_second_holder_and_one_out_of_range_are_refused(cluster: StartCluster) -> None:
    it = cluster(2)
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


def test_one_worker_too_many_is_refused_and_the_others_go_on(cluster: StartCluster) -> None:
    it = cluster(2)
    scheduler, workers = it.scheduler(), [it.worker("a"), it.worker("b")]
    until(lambda: len(list(it.directory.glob("held-*"))) == 2, within_s=START_S, what="two train", tell=scheduler.story)
    extra = it.worker("c")
    assert extra.wait(within_s=START_S) != 0
    assert "2 nodes have joined already, and this is one too many" in extra.err
    (it.directory / "go").touch()
    assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0]
    assert scheduler.wait(within_s=30) == 0


def test_too_few_end_in_time_and_say_how_many_came(cluster: StartCluster) -> None:
    it = cluster(3, MS_TOPO_TIMEOUT=12)
    processes = [it.scheduler(), it.worker(), it.worker()]
    for process in processes:
        assert process.wait(within_s=START_S) != 0
    assert "2 of 3 nodes are here" in processes[0].err
    assert "no world within 12 s" in processes[1].err
