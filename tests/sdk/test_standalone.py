"""Without a job around it, a script with the SDK simply trains, and comes to what a job of one rank comes to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jobs import StartJob, clean_env

SCRIPT = Path(__file__).parent / "scripts" / "repairable.py"


def test_plain_python_trains_to_the_same_weights_as_a_job_of_one_rank(run_job: StartJob, tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, tmp_path]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=clean_env())
    job = run_job(SCRIPT, tmp_path)
    assert job.wait(within_s=90) == 0, job.story()
    assert "weights" in alone.stdout
    assert alone.stdout.split()[-1] == job.out.split()[-1]


def test_an_exception_in_a_step_is_the_users_to_see(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, tmp_path, "3:0:bug"]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=clean_env())
    assert alone.returncode == 1
    assert alone.stderr.rstrip().endswith("ValueError: bug at 3")
