"""Any process of a cluster can be killed and pulled up again; without recovery, all end and say who was lost."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clusters import SLACK_S, START_S, StartCluster, end_of
from jobs import Job, kill, listening_ports, until
from machines import obstacle

pytestmark = pytest.mark.timeout(400)


def ports_of(scheduler: Job) -> list[int]:
    """Its own and its store's, once it listens at both."""
    ports = lambda: sorted(listening_ports(scheduler.pid))  # noqa: E731
    until(lambda: len(ports()) == 2, within_s=START_S, what="both ports", tell=scheduler.story)
    return ports()


@pytest.mark.parametrize("fault", ["killed", "silent", "killed elsewhere", "killed elsewhere outside of a step"])
def test_without_recovery_a_lost_worker_ends_the_cluster_in_time_and_is_named(
    cluster: StartCluster, fault: str
) -> None:
    is_elsewhere = "elsewhere" in fault
    if is_elsewhere and obstacle():
        pytest.skip(obstacle())
    node_timeout_s, intervals_s = 6.0, (1.2, 2.0)
    it = cluster(2, MS_NODE_TIMEOUT=node_timeout_s)
    if "outside" in fault:
        (it.directory / "unguarded").touch()
    scheduler, workers = it.scheduler(), [it.worker(0), it.worker(1, elsewhere=is_elsewhere)]
    it.wait_for_hold(2)
    story = it.follow()
    faulty_at = datetime.now(UTC)
    for pid in workers[1].processes():
        kill(pid, signal.SIGSTOP if fault == "silent" else signal.SIGKILL)
    for process in (scheduler, workers[0]):
        assert process.wait(within_s=60) != 0
        assert "node 1 is lost" in process.err
        assert "recovery is off (HOLDFAST_ENABLE_RECOVERY=0)" in process.err
    ended_at = datetime.now(UTC)
    lost_after_s = (story.when("node_lost", node="1") - faulty_at).total_seconds()
    if fault != "killed":
        assert lost_after_s > node_timeout_s - intervals_s[1] - 1.0, "silence counts from the last heartbeat"
    for at in (story.when("job_finished"), ended_at):
        assert (at - faulty_at).total_seconds() <= node_timeout_s + 2 * intervals_s[1] + SLACK_S


def test_without_recovery_a_worker_that_raises_ends_the_cluster_and_says_why(cluster: StartCluster) -> None:
    """Its peers see only that it is gone; without heartbeats nothing else would tell of it."""
    it = cluster(2, MS_DISABLE_HEARTBEAT=1)
    scheduler, workers = it.scheduler(), [it.worker(rank) for rank in range(2)]
    it.wait_for_hold(2)
    (it.directory / "raise-1").touch()
    assert [process.wait(within_s=60) for process in (scheduler, *workers)] == [1, 1, 1]
    for process in (scheduler, workers[0]):
        assert "rank 1 ended with exit code 1: ValueError: a bad label" in process.err, process.story()
    assert "root cause: rank 1 on 1" in scheduler.err


def test_without_recovery_a_lost_scheduler_ends_the_cluster_in_time(cluster: StartCluster) -> None:
    it = cluster(1, MS_NODE_TIMEOUT=6)
    scheduler, worker = it.scheduler(), it.worker(0)
    it.wait_for_hold(1)
    kill(scheduler.pid)
    assert worker.wait(within_s=60) != 0
    assert f"no master at 127.0.0.1:{it.port} within 6 s: connection refused" in worker.err


def test_without_recovery_a_scheduler_that_is_stopped_ends_the_cluster_at_once(cluster: StartCluster) -> None:
    it = cluster(1, MS_NODE_TIMEOUT=300)
    scheduler, worker = it.scheduler(), it.worker(0)
    it.wait_for_hold(1)
    kill(scheduler.pid, signal.SIGTERM)
    assert [process.wait(within_s=60) for process in (scheduler, worker)] == [128 + signal.SIGTERM, 1]
    assert "ending the job: the scheduler got SIGTERM" in worker.err


def test_with_recovery_a_scheduler_that_is_stopped_is_waited_for(
    cluster: StartCluster, weights_of_two: str, tmp_path: Path
) -> None:
    it = cluster(2, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path)
    scheduler, workers = it.scheduler(), [it.worker(rank) for rank in range(2)]
    it.wait_for_hold(2)
    kill(scheduler.pid, signal.SIGTERM)
    assert scheduler.wait(within_s=60) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; the others wait for the scheduler to be started again" in scheduler.err
    scheduler = it.scheduler()
    (it.directory / "go").touch()
    assert [process.wait(within_s=START_S) for process in (scheduler, *workers)] == [0, 0, 0], scheduler.story()
    assert {end_of(worker)[4] for worker in workers} == {weights_of_two}


def test_a_scheduler_that_comes_back_without_its_state_ends_the_others_and_a_new_cluster_can_form(
    cluster: StartCluster,
) -> None:
    it = cluster(1, MS_NODE_TIMEOUT=300)
    scheduler, worker = it.scheduler(), it.worker(0)
    it.wait_for_hold(1)
    kill(scheduler.pid)
    scheduler.process.wait()
    scheduler = it.scheduler()
    assert worker.wait(within_s=START_S) == 1
    assert "the state of the cluster is lost, and all have to be started again" in worker.err
    (it.directory / "go").touch()
    worker = it.worker(0)
    assert [process.wait(within_s=START_S) for process in (scheduler, worker)] == [0, 0], scheduler.story()


def test_who_has_ended_well_too_early_is_waited_for_and_has_its_place_when_it_is_started_again(
    cluster: StartCluster, weights_of_two: str, tmp_path: Path
) -> None:
    it = cluster(2, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path)
    scheduler, workers = it.scheduler(), [it.worker(rank) for rank in range(2)]
    it.wait_for_hold(2)
    it.order_exit(rank=1, code=0)
    assert workers[1].wait(within_s=60) == 0
    workers[0].wait_for_output("waiting: a node in place of 1", within_s=60)
    assert "not every worker uses the SDK" not in scheduler.err
    (it.directory / "go").touch()
    workers[1] = it.worker(1)
    assert [process.wait(within_s=START_S) for process in (scheduler, *workers)] == [0, 0, 0], scheduler.story()
    assert {end_of(worker)[4] for worker in workers} == {weights_of_two}


def test_without_ids_too_a_new_process_takes_the_place_of_one_that_died_while_the_scheduler_was_away(
    cluster: StartCluster, weights_of_two: str, tmp_path: Path
) -> None:
    it = cluster(2, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path, MS_NODE_TIMEOUT=300)
    scheduler, workers = it.scheduler(), [it.worker(), it.worker()]
    it.wait_for_hold(2)
    for process in (scheduler, workers[1]):
        kill(process.pid)
        process.process.wait()
    scheduler, workers[1] = it.scheduler(), it.worker()
    (it.directory / "go").touch()
    assert [process.wait(within_s=START_S) for process in (scheduler, *workers)] == [0, 0, 0], scheduler.story()
    assert {end_of(worker)[4] for worker in workers} == {weights_of_two}


def test_who_takes_the_place_of_a_silent_one_keeps_it_and_a_good_end_waits_for_the_scheduler(
    cluster: StartCluster, weights_of_two: str, tmp_path: Path
) -> None:
    it = cluster(2, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path, HOLDFAST_REJECTION_WINDOW=3)
    scheduler, workers = it.scheduler(), [it.worker(rank) for rank in range(2)]
    it.wait_for_hold(2)
    silent = workers[1]
    kill(silent.pid, signal.SIGSTOP)
    workers[1] = it.worker(1)
    workers[0].wait_for_output(" repaired in ", within_s=START_S)
    kill(silent.pid, signal.SIGCONT)
    assert silent.wait(within_s=60) != 0
    assert f"pid {workers[1].pid} on " in silent.err
    kill(scheduler.pid)
    scheduler.process.wait()
    (it.directory / "go").touch()
    for worker in workers:
        worker.wait_for_output("ended well; the scheduler has to hear of it\n", within_s=START_S)
    scheduler = it.scheduler()
    assert [process.wait(within_s=START_S) for process in (scheduler, *workers)] == [0, 0, 0], scheduler.story()
    assert {end_of(worker)[4] for worker in workers} == {weights_of_two}


def test_scheduler_and_workers_are_lost_one_after_the_other_and_pulled_up_again(
    cluster: StartCluster, weights_of_two: str, tmp_path: Path
) -> None:
    state = tmp_path / "made" / "by itself"
    it = cluster(2, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=state)
    # Before all are there.
    scheduler, workers = it.scheduler(), [it.worker("a")]
    workers[0].wait_for_output("waiting: 1 of 2 nodes are here", within_s=START_S)
    ports = ports_of(scheduler)
    kill(scheduler.pid)
    scheduler.process.wait()
    scheduler = it.scheduler()
    assert ports_of(scheduler) == ports, "who was told to meet there comes there"
    # When all have been told where to meet, and nobody has been there.
    story = it.follow()
    workers.append(it.worker("b"))
    story.first("world_formed")
    kill(scheduler.pid)
    scheduler.process.wait()
    scheduler = it.scheduler()
    it.wait_for_hold(2)
    # A worker whose script fails.
    num_repairs = workers[0].err.count(" repaired in ")
    it.order_exit(rank=1, code=3)
    assert workers[1].wait(within_s=60) == 3, workers[1].story()
    workers[0].wait_for_output("node b lost", within_s=60)
    workers[1] = it.worker("b")
    workers[0].wait_for_output(" repaired in ", times=num_repairs + 1, within_s=START_S)
    # The scheduler, and while it is away a worker.
    kill(scheduler.pid)
    scheduler.process.wait()
    saved = it.saved(rank=0)
    until(lambda: it.saved(rank=0) - saved, within_s=60, what="steps without a scheduler", tell=workers[0].story)
    kill(workers[0].pid)
    workers[0].process.wait()
    scheduler = it.scheduler()
    workers[0] = it.worker("a")
    (it.directory / "go").touch()
    assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0], workers[1].story()
    assert scheduler.wait(within_s=60) == 0, scheduler.story()
    ends = [end_of(worker) for worker in workers]
    assert [end[0] for end in ends] == [0, 1]
    assert {end[4] for end in ends} == {weights_of_two}
    assert [end[3] for end in ends] == [worker.pid for worker in workers]
    assert "is held by" not in workers[0].err, "its death while nobody looked can be proven"
    for process in it.started:
        assert "resumed at step" not in process.err, "a live process has the state"
    assert not list(state.iterdir()), "what a finished cluster needs no more is gone"


def test_a_scheduler_that_dies_after_the_end_tells_the_others_of_it_when_it_is_back(
    cluster: StartCluster, tmp_path: Path
) -> None:
    it = cluster(1, MS_SERVER_NUM=1, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path / "state")
    scheduler, worker, server = it.scheduler(), it.worker(0), it.server(0)
    it.wait_for_hold(1)
    kill(server.pid, signal.SIGSTOP)
    story = it.follow()
    (it.directory / "go").touch()
    story.first("job_finished")
    kill(scheduler.pid)
    scheduler.process.wait()
    scheduler = it.scheduler()
    scheduler.wait_for_output("master restored from its journal", within_s=START_S)
    kill(server.pid, signal.SIGCONT)
    assert [process.wait(within_s=START_S) for process in (worker, server, scheduler)] == [0, 0, 0], server.story()
    assert f"the cluster whose state was in {tmp_path / 'state'} had ended" in scheduler.err
    assert not list((tmp_path / "state").iterdir())
