"""When nobody is left who holds the state, all go back to the newest checkpoint that all have."""

from __future__ import annotations

import re
import signal
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


def test_who_lives_goes_back_in_its_process_when_nobody_holds_the_state(
    cluster: StartCluster, weights_of_two: str, tmp_path: Path
) -> None:
    """First before anything is saved, then with steps to run again that the loop of the living does not come to."""
    it = cluster(NUM_WORKERS, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path / "state")
    (it.directory / "go").touch()
    (it.directory / "tear").write_text("5 27")
    scheduler, living, dying = it.scheduler(), it.worker(0), it.worker(1)
    for generation, step, verdict in ((2, 0, "no whole checkpoint in"), (3, 20, "resumed at step 20 from")):
        assert dying.wait(within_s=START_S) == 128 + signal.SIGKILL, dying.story()
        dying = it.worker(1)
        assert verdict in it.follow().first("resumed", generation=generation, step=step)["verdict"]
    assert [process.wait(within_s=START_S) for process in (living, dying, scheduler)] == [0, 0, 0], living.story()
    assert {end_of(worker)[4] for worker in (living, dying)} == {weights_of_two}
    assert [end_of(worker)[3] for worker in (living, dying)] == [living.pid, dying.pid]


def test_what_one_function_cannot_make_again_is_made_by_processes_that_are_started_again(
    cluster: StartCluster, weights_of_two: str, tmp_path: Path
) -> None:
    it = cluster(NUM_WORKERS, MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path / "state")
    (it.directory / "go").touch()
    (it.directory / "tear").write_text("27")
    (it.directory / "in-turn").touch()
    scheduler, living, dying = it.scheduler(), it.worker(0), it.worker(1)
    assert dying.wait(within_s=START_S) == 128 + signal.SIGKILL, dying.story()
    dying = it.worker(1)
    for worker in (living, dying):
        assert worker.wait(within_s=START_S) == 1, worker.story()
        assert "no rank holds a state to resume from" in worker.err
    assert "all workers have to be started again: " in scheduler.err
    workers = pull_up(it)
    assert [process.wait(within_s=START_S) for process in (*workers, scheduler)] == [0, 0, 0], workers[0].story()
    assert "resumed at step 20 from" in scheduler.err
    assert {end_of(worker)[4] for worker in workers} == {weights_of_two}
