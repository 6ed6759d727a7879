"""A wrong command says in one line what was given, where, and what would be valid; and starts nothing."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from jobs import HOLDFAST, run_in_vain

SCRIPT = "train.py"

pytestmark = pytest.mark.timeout(90)


@dataclass(frozen=True)
class Wrong:
    """A command line, and the words that its message must have."""

    args: tuple[str, ...]
    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


def wrong(*args: str, words: tuple[str, ...], **env: str) -> Wrong:
    return Wrong(args, words, env)


USAGE = {
    "no script": wrong(words=("SCRIPT",)),
    "unknown flag": wrong("--nprocs-per-node", "2", SCRIPT, words=("--nprocs-per-node",)),
    "flag without a value": wrong("--max-restarts", words=("--max-restarts",)),
    "no nodes": wrong("--nnodes", "0", SCRIPT, words=("--nnodes", "'0'", "1 or more")),
    "fewer than none": wrong("--nnodes=-1", SCRIPT, words=("--nnodes", "'-1'", "1 or more")),
    "nodes upside down": wrong("--nnodes", "3:2", SCRIPT, words=("--nnodes", "'3:2'", "not above MAX")),
    "nodes in three parts": wrong("--nnodes", "1:2:3", SCRIPT, words=("--nnodes", "'1:2:3'", "MIN:MAX")),
    "nodes by variable": wrong(SCRIPT, words=("PET_NNODES", "'two'", "MIN:MAX"), PET_NNODES="two"),
    "no workers": wrong("--nproc-per-node", "0", SCRIPT, words=("--nproc-per-node", "'0'", "1 or more")),
    "workers in words": wrong("--nproc_per_node", "all", SCRIPT, words=("--nproc-per-node", "'all'", "auto, cpu")),
    "half a worker": wrong("--nproc-per-node", "1.5", SCRIPT, words=("--nproc-per-node", "'1.5'", "number")),
    "workers by variable": wrong(SCRIPT, words=("PET_NPROC_PER_NODE", "'-2'", "1 or more"), PET_NPROC_PER_NODE="-2"),
    "no such device": wrong("--nproc-per-node", "xpu", SCRIPT, words=("--nproc-per-node", "'xpu'", "no such device")),
    "restarts": wrong("--max-restarts", "-1", SCRIPT, words=("--max-restarts", "'-1'", "0 or more")),
    "restarts in words": wrong("--max-restarts", "many", SCRIPT, words=("--max-restarts", "'many'", "whole number")),
    "restarts by variable": wrong(SCRIPT, words=("PET_MAX_RESTARTS", "'x'", "whole number"), PET_MAX_RESTARTS="x"),
    "node rank": wrong("--nnodes=2", "--node-rank=2", SCRIPT, words=("--node-rank", "'2'", "from 0 to 1")),
    "node rank in words": wrong("--nnodes=2", "--node-rank=a", SCRIPT, words=("--node-rank", "'a'", "whole number")),
    "grace": wrong("--shutdown-timeout", "soon", SCRIPT, words=("--shutdown-timeout", "'soon'", "number")),
    "negative grace": wrong("--shutdown-timeout=-1", SCRIPT, words=("--shutdown-timeout", "'-1'", "0 or more")),
    "grace that is no number": wrong("--shutdown-timeout", "nan", SCRIPT, words=("--shutdown-timeout", "'nan'")),
    "grace by variable": wrong(
        SCRIPT, words=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "'x'"), TORCH_ELASTIC_SHUTDOWN_TIMEOUT="x"
    ),
    "conf without value": wrong("--rdzv-conf", "join_timeout", SCRIPT, words=("--rdzv-conf", "KEY=VALUE")),
    "conf in words": wrong("--rdzv-conf", "join_timeout=x", SCRIPT, words=("--rdzv-conf join_timeout", "'x'")),
    "conf of nothing": wrong(
        "--rdzv-conf", "keep_alive_interval=0", SCRIPT, words=("--rdzv-conf keep_alive_interval", "'0'", "above 0")
    ),
    "no window": wrong(
        "--rdzv-conf", "restart_window=0", SCRIPT, words=("--rdzv-conf restart_window", "'0'", "above 0, or off")
    ),
    "endpoint without host": wrong("--rdzv-endpoint", ":9601", SCRIPT, words=("--rdzv-endpoint", "':9601'")),
    "endpoint with two ports": wrong("--rdzv-endpoint", "h:1:2", SCRIPT, words=("--rdzv-endpoint", "'h:1:2'")),
    "endpoint with no such port": wrong("--rdzv-endpoint", "h:99999", SCRIPT, words=("--rdzv-endpoint", "65535")),
    "endpoint with a name as port": wrong("--rdzv-endpoint", "h:http", SCRIPT, words=("--rdzv-endpoint", "'http'")),
    "endpoint that nobody can know": wrong(
        "--nnodes=2", "--rdzv-endpoint", "h:0", SCRIPT, words=("--rdzv-endpoint", "'h:0'", "one port")
    ),
    "master port": wrong("--master-port", "70000", SCRIPT, words=("--master-port", "'70000'", "65535")),
    "redirects": wrong("--redirects", "4", SCRIPT, words=("--redirects", "'4'", "0, 1, 2, 3")),
    "redirects by rank": wrong("-r", "0:5", SCRIPT, words=("--redirects", "'0:5'", "by local rank")),
    "tee": wrong("-t", "all", SCRIPT, words=("--tee", "'all'", "0, 1, 2, 3")),
    "tee by variable": wrong(SCRIPT, words=("PET_TEE", "'9'", "0, 1, 2, 3"), PET_TEE="9"),
    "ranks to show": wrong("--local-ranks-filter", "0,x", SCRIPT, words=("--local-ranks-filter", "'0,x'")),
    "signal": wrong("--signals-to-handle", "SIGFOO", SCRIPT, words=("--signals-to-handle", "'SIGFOO'")),
    "signal that nobody can handle": wrong(
        "--signals-to-handle", "SIGTERM,SIGKILL", SCRIPT, words=("--signals-to-handle", "'SIGKILL'")
    ),
    "start method": wrong("--start-method", "thread", SCRIPT, words=("--start-method", "'thread'", "warm, spawn")),
    "numa binding": wrong("--numa-binding", "moon", SCRIPT, words=("--numa-binding", "'moon'", "node, socket")),
    "switch by variable": wrong(SCRIPT, words=("PET_STANDALONE", "'maybe'"), PET_STANDALONE="maybe"),
    "module without python": wrong("--no-python", "-m", "pkg", words=("--no-python", "--module")),
    "token file": wrong("--token-file", "missing.txt", SCRIPT, words=("--token-file", "'missing.txt'", "read")),
    "empty token file": wrong("--token-file", "empty.txt", SCRIPT, words=("--token-file", "'empty.txt'", "empty")),
    "events file": wrong("--events", "no/such/dir/x", SCRIPT, words=("--events", "'no/such/dir/x'", "written")),
    "log directory": wrong("--log-dir", "empty.txt", SCRIPT, words=("--log-dir", "'empty.txt'", "directory")),
    "script": wrong("absent.py", words=("SCRIPT", "'absent.py'", "no such file")),
    "script for run-path": wrong("--run-path", "absent.py", words=("SCRIPT", "'absent.py'", "no such file")),
}

OTHER = {
    "syntax": wrong("broken.py", words=("broken.py", "line 2")),
    "null bytes": wrong("binary.py", words=("binary.py", "null")),
    "log directory that cannot be made": wrong("--log-dir", "/proc/logs", SCRIPT, words=("--log-dir", "/proc/logs")),
    "host": wrong(
        "--nnodes=2",
        "--rdzv-endpoint",
        "no-such-host.invalid:1",
        SCRIPT,
        words=("--rdzv-endpoint", "no-such-host.invalid"),
    ),
}


NOTES = ("holdfast: this job can be reached", "holdfast: no token is set")
"""What a job on a network address is told in any case."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / SCRIPT).write_text("print('the script was run')\n")
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n    pass\n")
    (tmp_path / "binary.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "empty.txt").write_text("\n")
    return tmp_path


def refuse(case: Wrong, directory: Path) -> subprocess.CompletedProcess[str]:
    return run_in_vain([HOLDFAST, "run", *case.args], directory=directory, env=case.env)


def expect_one_clear_message(done: subprocess.CompletedProcess[str], words: tuple[str, ...]) -> None:
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
    assert len([line for line in said if not line.startswith(NOTES)]) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("name", USAGE)
def test_a_wrong_command_line(directory: Path, name: str):
    case = USAGE[name]
    done = refuse(case, directory)
    expect_one_clear_message(done, case.words)
    assert done.returncode == 2


@pytest.mark.parametrize("name", OTHER)
def test_a_right_command_line_that_cannot_be_carried_out(directory: Path, name: str):
    case = OTHER[name]
    done = refuse(case, directory)
    expect_one_clear_message(done, case.words)
    assert done.returncode == 1


def test_a_wrong_command_names_the_right_ones(directory: Path):
    done = subprocess.run([HOLDFAST, "rum"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'rum'" in done.stderr
    assert "run" in done.stderr.replace("rum", "")
