"""What every test of real processes shares."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import HOLDFAST, Job, StartJob, cleaned_up, start
from machines import MakeMachines, joined, obstacle

# Ignored where tests run in the background of a shell, and so in all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
    with starting_jobs(tmp_path) as begin:
        yield begin


@pytest.fixture(scope="module")
def run_job_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartJob]:
    """The same, for a job that the tests of a file share."""
    with starting_jobs(tmp_path_factory.mktemp("shared")) as begin:
        yield begin


@contextlib.contextmanager
def starting_jobs(place: Path) -> Iterator[StartJob]:
    with cleaned_up() as jobs:

        def begin(*args: object, **options: Any) -> Job:
            directory = place / f"job{len(jobs)}"
            job = start([HOLDFAST, "run", *map(str, args)], directory=directory, **options)
            jobs.append(job)
            return job

        yield begin


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[MakeMachines]:
    """Make so many machines that are joined by a switch; the test is skipped where none can be made."""
    if reason := obstacle():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield lambda number: stack.enter_context(joined(number, tmp_path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)
