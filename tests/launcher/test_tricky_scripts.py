"""Scripts that notice how they are run. A warm start must not show."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import HOLDFAST, PYTHON, StartJob, clean_env, kill, once_each, start

from holdfast.agent.preload import is_plain

TRICKY = Path(__file__).parent / "scripts" / "tricky.py"
ARGS = ("plain", "with space", "ünï→code", "", "--flag=1", "$HOME;'\"", "x" * 100_000)
STDIN = b"first line\nsecond line\nthe rest\n"

Script = Callable[..., Path]

pytestmark = pytest.mark.timeout(240)


# --- one script, many checks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script lies elsewhere than the link through which it is run, and both have names that need care."""
    directory = tmp_path_factory.mktemp("tricky")
    home = directory / "the script's höme"
    home.mkdir()
    shutil.copy(TRICKY, home / "real.py")
    (home / "helper.py").write_text("VALUE = 'from the sibling'\n")
    cwd = directory / "started here"
    cwd.mkdir()
    (cwd / "beside the cwd.txt").write_text("found")
    (cwd / "linked.py").symlink_to(home / "real.py")
    (directory / "stdin").write_bytes(STDIN)
    return directory


@pytest.fixture(scope="module")
def results(directory: Path) -> Callable[[str], dict[str, Any]]:
    """What the checks found under plain python, and under each start method."""
    return once_each(lambda how: _run_checks(how, directory))


def _run_checks(how: str, directory: Path) -> dict[str, Any]:
    where, cwd = directory / f"{how}.json", directory / "started here"
    command = ["linked.py", str(where), *ARGS]
    with open(directory / "stdin") as stdin:
        if how == "python":
            env = clean_env({"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "0"})
            done = subprocess.run(
                [PYTHON, "-u", *command], cwd=cwd, env=env, stdin=stdin, capture_output=True, check=True
            )
            out = done.stdout.decode()
        else:
            launcher = [HOLDFAST, "run", "--start-method", how]
            job = start([*launcher, *command], directory=directory / how, cwd=cwd, stdin=stdin.fileno())
            try:
                assert job.wait(within_s=60) == 0, job.story()
                job.expect_nothing_left()
            finally:
                job.destroy()
            out = job.out
    return {**json.loads(where.read_text()), "output at exit": out}


CHECKS = [
    line.partition("check_")[2].partition("(")[0]
    for line in TRICKY.read_text().splitlines()
    if line.startswith("def check_")
]


@pytest.mark.parametrize("check", [*CHECKS, "output at exit"])
@pytest.mark.parametrize("how", ["warm", "spawn"])
def test_a_script_finds_what_it_finds_under_plain_python(results: Callable[..., Any], how: str, check: str):
    expected, got = results("python")[check], results(how)[check]
    assert "Traceback" not in str(expected)[:20]
    assert got == expected


def test_threads_are_awaited_and_exit_handlers_run(results: Callable[..., Any]):
    assert results("warm")["output at exit"] == "thread ended\natexit ran\n"


def test_only_a_warm_start_has_torch_loaded(results: Callable[..., Any]):
    assert results("warm")["torch_is_warm"]
    assert not results("spawn")["torch_is_warm"]


# --- what must not be loaded ahead ----------------------------------------------------------------------------


def test_the_users_code_is_read_anew_at_every_restart(run_job: StartJob, script: Script):
    """The script edits itself and its helper, then fails; the working directory cannot be written to."""
    script("VALUE = 'old'\n", "helper.py")
    path = script("""
        import sys
        print("preloaded:", "helper" in sys.modules, "numpy" in sys.modules, flush=True)
        import numpy, os, pathlib
        import helper
        WORD = "before"
        print("found", WORD, helper.VALUE, flush=True)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            here = pathlib.Path(__file__)
            here.write_text(here.read_text().replace('"before"', '"after"'))
            # Longer than before: a cached file is told by time of change and size.
            here.with_name("helper.py").write_text("VALUE = 'new and longer'\\n")
            sys.exit(1)
    """)
    job = run_job(path, cwd=Path("/proc"))
    assert job.wait() == 0, job.story()
    assert "found before old\n" in job.out
    assert "found after new and longer\n" in job.out
    assert job.out.count("preloaded: False True") == 2
    assert "started cold" not in job.err


def test_a_sibling_that_hides_a_standard_module_is_found(run_job: StartJob, script: Script):
    script("MINE = True\n", "fractions.py")
    path = script("import fractions\nprint('mine:', fractions.MINE)\n")
    job = run_job(path)
    assert job.wait() == 0, job.story()
    assert "mine: True" in job.out
    assert f"workers are started cold: {path.parent / 'fractions.py'} hides a module" in job.err


def test_a_script_that_sets_a_variable_that_torch_reads_at_import(run_job: StartJob, script: Script):
    path = script("""
        import os, sys
        assert "torch" not in sys.modules
        os.environ["OMP_NUM_THREADS"] = "2"
        import torch
        sys.stdout.write(f"threads {torch.get_num_threads()}\\n")
    """)
    job = run_job("--nproc-per-node", 2, path)
    assert job.wait() == 0, job.story()
    assert job.out.count("threads 2") == 2
    assert "workers are started cold: train.py sets OMP_NUM_THREADS" in job.err


# --- the end --------------------------------------------------------------------------------------------------


def test_a_crash_of_native_code_is_shown_with_the_python_stack(run_job: StartJob, script: Script):
    path = script("""
        import ctypes, os, signal

        def read_nowhere():
            ctypes.string_at(0)

        if os.environ["RANK"] == "1":
            read_nowhere()
        signal.pause()
    """)
    job = run_job("--nproc-per-node", 2, "--max-restarts", 0, path)
    assert job.wait() == 128 + signal.SIGSEGV
    root = job.err[job.err.index("root cause: rank 1 ") :]
    assert "SIGSEGV" in root.splitlines()[0]
    assert "in read_nowhere" in root
    assert str(path) in root


def test_a_warm_script_handles_the_signals_it_wants(run_job: StartJob, script: Script):
    path = script("""
        import os, signal, sys, threading, time

        def save(number, frame):
            print("saving on", signal.Signals(number).name, threading.current_thread().name, flush=True)
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
    """)
    job = run_job("--nproc-per-node", 2, path)
    job.wait_for_output("ready", times=2)
    kill(job.pid, signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    assert job.out.count("saving on SIGTERM MainThread") == 2


def test_lines_of_several_ranks_are_written_whole(run_job: StartJob, script: Script):
    path = script("""
        import sys
        for number in range(2000):
            print("one", "line", number, "of", "many")
            print("one", "line", number, "of", "many", file=sys.stderr)
        print("no end of", "a line", end="")
    """)
    job = run_job("--nproc-per-node", 4, path)
    assert job.wait() == 0, job.story()
    expected = sorted(4 * [f"one line {number} of many" for number in range(2000)])
    assert sorted(job.out.replace("no end of a line", "").splitlines()) == expected
    assert job.out.count("no end of a line") == 4
    assert sorted(line for line in job.err.splitlines() if line.startswith("one")) == expected


def test_a_keyboard_interrupt_is_raised_in_a_warm_script(run_job: StartJob, script: Script):
    path = script("""
        import time
        try:
            print("ready", flush=True)
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("cleaned up", flush=True)
            raise
    """)
    job = run_job(path)
    job.wait_for_output("ready")
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT
    assert "cleaned up" in job.out


def test_a_command_line_of_a_megabyte(run_job: StartJob, script: Script):
    path = script("import sys\nprint(sum(map(len, sys.argv[1:])), len(sys.argv))\n")
    job = run_job("--start-method", "spawn", path, *["x" * 100_000] * 10)
    assert job.wait() == 0, job.story()
    assert job.out == "1000000 11\n"


def test_a_script_without_torch_has_none_imported_and_a_store_for_whoever_comes(run_job: StartJob, script: Script):
    client = script(
        """
        import os, torch.distributed
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = torch.distributed.TCPStore(*address, is_master=False)
        store.set("key", "value")
        print(store.get("key").decode())
        """,
        name="client.py",
    )
    path = script(f"""
        import subprocess, sys
        print("torch" in sys.modules, flush=True)
        subprocess.run([sys.executable, {str(client)!r}], check=True)
    """)
    job = run_job(path)
    assert job.wait() == 0, job.story()
    assert job.out.split() == ["False", "value"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nfrom collections.abc import Mapping\n", True),
        ("print()\n", True),
        ("import torch\n", False),
        ("def late():\n    import models\n", False),
        ("from . import models\n", False),
    ],
)
def test_what_is_plain(source: str, expected: bool):
    assert is_plain(ast.parse(source)) is expected
