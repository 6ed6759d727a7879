"""Jobs that a test submits."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import HOLDFAST, Job, start
from submitted import SHARED, WAIT, Submitted, why_not_apart

Start = Callable[[list[str]], Submitted]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Start a job by the words after `holdfast submit`; whatever is alive at the end of the test is killed."""
    runtime = Path(tempfile.mkdtemp(prefix="holdfast_"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    jobs: list[Job] = []

    def begin(words: list[str]) -> Submitted:
        env = {"HOLDFAST_RUNTIME_DIR": str(runtime), "TMPDIR": str(scratch)}
        jobs.append(start([HOLDFAST, "submit", *words], directory=tmp_path / f"job{len(jobs)}", env=env))
        return Submitted(jobs[-1], runtime, scratch)

    yield begin
    for job in jobs:
        job.destroy()
    shutil.rmtree(runtime)


@pytest.fixture
def submit(begin: Start, script: Callable[..., Path]) -> Callable[..., Submitted]:
    """Submit a job with some flags."""

    def submit(*flags: object, source: str = WAIT) -> Submitted:
        path = script(source)
        quick = ("--start-method", "spawn", "--last-call-timeout", "1", "--name", "j")
        return begin([*quick, *map(str, flags), "--", str(path)])

    return submit


@pytest.fixture
def submit_file(begin: Start, script: Callable[..., Path], tmp_path: Path) -> Callable[..., Submitted]:
    """Submit a job by its file, in which SCRIPT stands for a script, with some flags."""

    def submit(text: str, *flags: object, source: str) -> Submitted:
        file = tmp_path / "job.yaml"
        file.write_text(text.replace("SCRIPT", str(script(source))))
        return begin([str(file), "--name", "j", *map(str, flags)])

    return submit


@pytest.fixture(params=["plain", "apart"])
def where(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Flags for nodes that share all, or have networks and limits of their own."""
    if request.param == "apart" and (reason := why_not_apart()):
        pytest.skip(reason)
    return SHARED if request.param == "plain" else ("--network", "namespace", "--limits", "cgroup")


@pytest.fixture
def apart() -> tuple[str, ...]:
    if reason := why_not_apart():
        pytest.skip(reason)
    return ("--network", "namespace", "--limits", "cgroup")
