"""Standbys: one fault after the other finds a parked one, and one that is lost is replaced."""

from __future__ import annotations

from pathlib import Path

from jobs import StartJob, cmdline, is_alive, kill, parent, until

SCRIPT = Path(__file__).parent / "scripts" / "endless.py"
PARK_S = 30.0


def test_two_kills_and_the_loss_of_the_standby_itself(run_job: StartJob, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    job = run_job("--nproc-per-node", 2, "--standby", 1, SCRIPT, marks)
    workers = job.wait_for_workers()

    def parked(than: set[int]) -> int:
        """The process of a standby that is none of these and waits at its loop."""
        return until(
            lambda: next((pid for pid in map(int, marks_of("standby")) if pid not in than and is_alive(pid)), None),
            within_s=PARK_S,
            what="a standby comes to its loop",
            tell=job.story,
        )

    def marks_of(kind: str) -> list[str]:
        return [path.name.partition("-")[2] for path in marks.glob(f"{kind}-*")]

    first = parked(set())
    kill(first)
    second = parked({first})
    assert not job.events("incident_opened"), "nobody misses a standby"

    kill(workers[1])
    job.wait_for("incident_closed", number=1, verdict="repaired")
    assert job.events("workers_started")[-1]["pids"] == {"1": second}

    third = parked({first, second})
    kill(workers[0])
    job.wait_for("incident_closed", number=2, verdict="repaired")
    assert job.events("workers_started")[-1]["pids"] == {"0": third}
    assert is_alive(second)

    (marks / "stop").touch()
    assert job.wait(within_s=90) == 0, job.story()
    assert not [pid for pid in job.processes() if parent(pid) and "endless.py" in " ".join(cmdline(pid))]


def test_processes_that_are_heard_of_before_the_news_of_their_start_are_used(run_job: StartJob, tmp_path: Path) -> None:
    """On a busy machine the warm interpreter may come to tell of a fork long after the child has run."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nos.register_at_fork(after_in_parent=lambda: time.sleep(2))\n"
    )
    marks = tmp_path / "marks"
    marks.mkdir()
    env = {"PYTHONPATH": str(tmp_path)}
    job = run_job("--nproc-per-node", 2, "--standby", 1, SCRIPT, marks, env=env)
    workers = job.wait_for_workers()
    parks = lambda: [path.name.partition("-")[2] for path in marks.glob("standby-*")]  # noqa: E731
    standby = until(parks, within_s=PARK_S, what="a standby comes to its loop", tell=job.story)[0]
    until((marks / "trains").exists, within_s=PARK_S, what="the workers train", tell=job.story)
    kill(workers[1])
    job.wait_for("incident_closed", verdict="repaired")
    assert job.events("workers_started")[-1]["pids"] == {"1": int(standby)}
    (marks / "stop").touch()
    assert job.wait(within_s=90) == 0, job.story()
