"""What every test of real processes shares."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import HOLDFAST, Job, StartJob, start


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a script, or a module beside it, and give its path."""

    def write(source: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path

    return write


@pytest.fixture
def run_job(tmp_path: Path) -> Iterator[StartJob]:
    """Start `holdfast run` with some arguments; whatever is alive at the end of the test is killed.

    A job that has ended by then must have left nothing behind.
    """
    jobs: list[Job] = []

    def begin(*args: object, **options: Any) -> Job:
        directory = tmp_path / f"job{len(jobs)}"
        job = start([HOLDFAST, "run", *map(str, args)], directory=directory, **options)
        jobs.append(job)
        return job

    yield begin
    try:
        for job in jobs:
            if job.process.poll() is not None:
                job.expect_nothing_left()
    finally:
        for job in jobs:
            job.destroy()
