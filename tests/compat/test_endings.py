"""However a script ends, its exit code and its last words are those of `python script.py`."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import HOLDFAST, PYTHON, clean_env, start

SOURCE = Path(__file__).parent / "probes" / "endings.py"

ENDINGS = (
    "code",
    "minus_one",
    "text",
    "object",
    "exception",
    "chained",
    "context",
    "group",
    "notes",
    "grumpy",
    "deep",
    "recursion",
    "syntax",
    "bad_module",
    "missing_module",
    "hook",
    "interrupt",
    "os_exit",
    "killed",
    "terminated",
    "abort",
    "success",
)
REPEATED = re.compile(r"repeated \d+ more")
"""A few frames below the script are ours, so it may recurse a few levels less."""

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Ending:
    code: int
    """Negative: the signal that ended the worker."""
    stderr: str
    failure: dict[str, Any] | None = None


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("endings")
    shutil.copy(SOURCE, directory / "endings.py")
    (directory / "broken_sibling.py").write_text("def f(:\n")
    return directory


@pytest.fixture(scope="module")
def ours(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ending]:
    """All endings in one job: each failure restarts the worker, which then ends in the next way."""
    logs = tmp_path_factory.mktemp("logs")
    flags = ["--log-dir", str(logs), "--redirects", "2", "--max-restarts", str(len(ENDINGS))]
    job = start([HOLDFAST, "run", *flags, "endings.py", *ENDINGS], directory=logs, cwd=directory)
    try:
        assert job.wait(within_s=60) == 0, job.story()
    finally:
        job.destroy()
    failures = {entry["generation"]: entry["failure"] for entry in job.events("worker_failed")}
    [run] = [path for path in logs.iterdir() if path.is_dir()]
    endings = {}
    for index, name in enumerate(ENDINGS):
        failure = failures.get(index + 1)
        code = 0 if failure is None else -failure["signal"] if failure["signal"] else failure["exit_code"]
        text = (run / f"attempt_{index}" / "0" / "stderr.log").read_text()
        endings[name] = Ending(code, text, failure)
    return endings


def run_plainly(directory: Path, ending: str) -> Ending:
    done = subprocess.run(
        [PYTHON, "-u", "endings.py", ending],
        cwd=directory,
        env=clean_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    return Ending(done.returncode, done.stderr)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_under_plain_python(ours: dict[str, Ending], directory: Path, ending: str):
    plain = run_plainly(directory, ending)
    assert ours[ending].code == plain.code
    assert REPEATED.sub("repeated", ours[ending].stderr) == REPEATED.sub("repeated", plain.stderr)


@pytest.mark.parametrize("ending", ["exception", "chained", "group", "deep", "syntax", "missing_module"])
def test_the_event_of_a_failure_carries_the_traceback(ours: dict[str, Ending], ending: str):
    failure = ours[ending].failure
    assert failure is not None
    words = ours[ending].stderr.removeprefix(f"before {ending}\n")
    assert failure["error"] == words
    assert "holdfast" not in words


def test_a_script_that_ends_well_is_no_failure(ours: dict[str, Ending]):
    assert ours["success"].failure is None
