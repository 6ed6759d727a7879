"""A fault in one process costs the step in flight: the others live on, and the result is the same, bit for bit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import Job, StartJob, is_alive

SCRIPT = Path(__file__).parent / "scripts" / "repairable.py"
LINE = re.compile(r"rank (\d+) pid (\d+) weights (\w+)")


def finals(job: Job) -> dict[int, tuple[int, str]]:
    """Process id and weights of each rank at the end."""
    return {int(rank): (int(pid), weights) for rank, pid, weights in LINE.findall(job.out)}


def play(run_job: StartJob, marks: Path, *faults: str, flags: tuple[str, ...] = ()) -> Job:
    marks.mkdir()
    return run_job("--nproc-per-node", 4, "--hang-timeout", "4:60", *flags, SCRIPT, marks, *faults)


@pytest.fixture(scope="module")
def undisturbed(run_job_for_all: StartJob, tmp_path_factory: pytest.TempPathFactory) -> str:
    job = play(run_job_for_all, tmp_path_factory.mktemp("calm") / "marks")
    assert job.wait(within_s=120) == 0, job.story()
    weights = {weights for _, weights in finals(job).values()}
    assert len(finals(job)) == 4
    assert len(weights) == 1, "all replicas are equal"
    return weights.pop()


def test_killed_raising_and_stopped_workers_cost_a_step_each(
    run_job: StartJob, undisturbed: str, tmp_path: Path
) -> None:
    job = play(run_job, tmp_path / "marks", "20:2:kill", "40:1:raise", "59:0:kill-in-section", "75:3:stop")
    before = job.wait_for_workers()
    assert job.wait(within_s=100) == 0, job.story()
    after = finals(job)
    assert {weights for _, weights in after.values()} == {undisturbed}, job.story()
    assert len(after) == 4
    closed = [event["verdict"] for event in job.events("incident_closed")]
    assert closed.count("repaired") >= 4, job.story()
    assert not job.events("stopping"), "nobody was restarted with the group"
    started = [event["pids"] for event in job.events("workers_started")]
    # A survivor whose gloo does not let go of the old world is replaced too, as an exception.
    assert sum(map(len, started[1:])) <= 4 + 2
    assert [sorted(started[0]), {rank for pids in started[1:] for rank in pids}] == [list("0123"), set("0123")]
    assert {int(rank): pid for pids in started for rank, pid in pids.items()} == {
        r: pid for r, (pid, _) in after.items()
    }
    assert not any(is_alive(pid) for pid in before.values())


def test_the_same_exception_at_the_same_step_again_is_the_scripts_fault(run_job: StartJob, tmp_path: Path) -> None:
    job = play(run_job, tmp_path / "marks", "10:1:bug")
    assert job.wait(within_s=120) == 1
    assert "the script is at fault" in job.err
    assert job.err.rstrip().endswith("ValueError: bug at 10")
    assert len(job.events("incident_opened")) == 1


def test_a_process_that_fails_its_step_again_makes_way_for_another(
    run_job: StartJob, undisturbed: str, tmp_path: Path
) -> None:
    job = play(run_job, tmp_path / "marks", "20:2:stuck")
    before = job.wait_for_workers()
    assert job.wait(within_s=120) == 0, job.story()
    opened = job.events("incident_opened")
    assert [event["strategy"] for event in opened] == ["retry", "recover-in-place"], job.story()
    after = finals(job)
    assert {weights for _, weights in after.values()} == {undisturbed}
    assert {rank for rank, (pid, _) in after.items() if pid != before[rank]} == {2}


def test_a_standby_takes_the_rank_of_a_lost_worker(run_job: StartJob, undisturbed: str, tmp_path: Path) -> None:
    job = play(run_job, tmp_path / "marks", "30:2:sleep", flags=("--standby", "1"))
    workers = job.wait_for_workers()
    assert job.wait(within_s=120) == 0, job.story()
    assert {weights for _, weights in finals(job).values()} == {undisturbed}
    opened = job.events("incident_opened")
    assert [event["strategy"] for event in opened] == ["recover-in-place"]
    assert "rank 2 hung: did not get on at step 30 for more than" in opened[0]["symptom"]
    assert finals(job)[2][0] != workers[2]
    assert {rank: finals(job)[rank][0] for rank in (0, 1, 3)} == {rank: workers[rank] for rank in (0, 1, 3)}


def test_a_rank_in_native_code_that_holds_the_interpreter_can_only_be_killed(
    run_job: StartJob, undisturbed: str, tmp_path: Path
) -> None:
    job = play(run_job, tmp_path / "marks", "30:1:spin")
    assert job.wait(within_s=120) == 0, job.story()
    assert {weights for _, weights in finals(job).values()} == {undisturbed}
    failed = job.events("worker_failed")[0]["failure"]
    assert failed["error"].startswith("hung: did not get on at step 30")
    assert "in strike" in failed["error"], "its Python stack tells where"


def test_logs_may_lie_in_a_directory_with_a_long_name(run_job: StartJob, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    job = run_job("--log-dir", tmp_path / ("long" * 40), SCRIPT, tmp_path / "marks", "20:0:raise")
    assert job.wait(within_s=120) == 0, job.story()
    assert len(finals(job)) == 1
