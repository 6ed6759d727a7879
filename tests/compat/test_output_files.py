"""--log-dir, --tee, --redirects, --local-ranks-filter and the filters put every line where torchrun puts it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import HOLDFAST, TORCHRUN, once_each, start

SCRIPT = """\
import os, sys
rank = os.environ["RANK"]
for stream in (sys.stdout, sys.stderr):
    name = "out" if stream is sys.stdout else "err"
    stream.write(f"{name} {rank}\\n")
    stream.write(f"KEEP, {name} {rank}\\n")
    stream.write(f"  indented\\ttabbed {name} \\u00e9 {rank}\\n\\n")
sys.stdout.write(f"last words {rank}")
"""

SETTINGS: dict[str, tuple[str, ...]] = {
    "tee": ("--tee", "3", "--role", "trainer"),
    "redirects": ("--redirects", "3", "--tee", "1:1", "--local-ranks-filter", "1"),
    "by rank": ("-r", "0:1,1:2", "-t", "0:2", "--local_ranks_filter=0,1"),
    "filters": ("-t", "3", "--duplicate-stdout-filters", "KEEP,,,nothing", "--duplicate_stderr_filters", "err 0"),
}

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Output:
    files: dict[str, str]
    """Relative to the directory of the run; our own files left out."""
    out: list[str]
    err: list[str]


@pytest.fixture(scope="module")
def run_output(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Output]:
    return once_each(lambda *command: _run(command, tmp_path_factory.mktemp("output")))


def _run(command: tuple[str, ...], directory: Path) -> Output:
    (directory / "speak.py").write_text(SCRIPT)
    logs = directory / "logs"
    job = start([*command, "--log-dir", str(logs), "speak.py"], directory=directory)
    try:
        assert job.wait(within_s=150) == 0, job.story()
    finally:
        job.destroy()
    [run] = logs.iterdir()
    files = {
        str(path.relative_to(run)): path.read_text()
        for path in run.rglob("*")
        if path.is_file() and not path.name.startswith("journal")
    }
    # What torchrun itself logs is not the workers' output.
    err = [line for line in job.err.splitlines() if not re.match(r"[WEI]\d{4} ", line)]
    return Output(files, sorted(filter(None, job.out.splitlines())), sorted(filter(None, err)))


@pytest.mark.parametrize("setting", SETTINGS)
def test_files_hold_what_the_workers_wrote(run_output: Callable[..., Output], setting: str):
    theirs, ours = _both(run_output, setting)
    assert ours.files.keys() == theirs.files.keys()
    # Ranks write at their own pace, so lines of one file of several ranks come in any order.
    shared = {name for name in theirs.files if "filtered" in name}
    for name, text in theirs.files.items():
        if name in shared:
            assert sorted(ours.files[name].splitlines()) == sorted(text.splitlines()), name
        else:
            assert ours.files[name] == text, name


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_console_shows_the_same_lines(run_output: Callable[..., Output], setting: str):
    theirs, ours = _both(run_output, setting)
    assert _split_last_words(ours.out) == _split_last_words(theirs.out)
    assert ours.err == theirs.err


def test_log_dir_alone_copies_both_streams(run_output: Callable[..., Output]):
    ours = run_output(HOLDFAST, "run", "--nproc-per-node", "2", "--start-method", "spawn")
    logs = {f"attempt_0/{rank}/{stream}.log" for rank in (0, 1) for stream in ("stdout", "stderr")}
    assert ours.files.keys() == logs
    assert "[default1]:out 1" in ours.out
    assert "out 1\n" in ours.files["attempt_0/1/stdout.log"]


def _both(run_output: Callable[..., Output], setting: str) -> tuple[Output, Output]:
    flags = ("--nproc-per-node", "2", *SETTINGS[setting])
    return run_output(TORCHRUN, *flags), run_output(HOLDFAST, "run", "--start-method", "spawn", *flags)


def _split_last_words(lines: list[str]) -> list[str]:
    """torchrun lets the next rank's line follow a last line without an end; we end the line."""
    parts = []
    for line in lines:
        head, found, tail = line.partition("last words ")
        parts += [head + found + tail[:1], tail[1:]] if found else [line]
    return sorted(filter(None, parts))
