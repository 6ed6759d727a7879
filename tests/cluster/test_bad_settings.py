"""A process that was told nonsense ends at once, names the variable, and runs no line of the script."""

from __future__ import annotations

import http.server
import socket
import threading
from pathlib import Path

import pytest
from clusters import START_S, StartCluster
from jobs import PYTHON, Job, free_port, start, until

SCRIPT = """
import atexit, sys
import holdfast
atexit.register(lambda: print("torch" if "torch" in sys.modules else "no torch"))
holdfast.init()
print("went on")
"""
GOOD = {"MS_ROLE": "MS_WORKER", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118", "MS_WORKER_NUM": "2"}
RECOVERY = {"MS_ENABLE_RECOVERY": "1"}
PORTS = "is not valid; it must be a whole number from 1024 to 65535"
REQUIRED = "None is not valid; it must be set"


def init_with(directory: Path, variables: dict[str, str]) -> Job:
    job = start([PYTHON, "-c", SCRIPT], directory=directory, env={**GOOD, **variables})
    try:
        assert job.wait() == 1, job.story()
    finally:
        job.destroy()
    return job


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MS_ROLE": "FOO"}, "MS_ROLE: 'FOO' is not valid; it must be one of scheduler, MS_SCHED, worker, MS_WORKER"),
        ({"MS_SCHED_HOST": ""}, f"HOLDFAST_SCHED_HOST (or MS_SCHED_HOST): {REQUIRED}"),
        ({"MS_SCHED_PORT": ""}, f"HOLDFAST_SCHED_PORT (or MS_SCHED_PORT): {REQUIRED}"),
        ({"MS_WORKER_NUM": ""}, f"HOLDFAST_WORKER_NUM (or MS_WORKER_NUM): {REQUIRED}"),
        ({"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": ""}, f"HOLDFAST_WORKER_NUM (or MS_WORKER_NUM): {REQUIRED}"),
        ({"MS_SCHED_PORT": "0"}, f"MS_SCHED_PORT: '0' {PORTS}"),
        ({"MS_SCHED_PORT": "80"}, f"MS_SCHED_PORT: '80' {PORTS}"),
        ({"MS_SCHED_PORT": "70000"}, f"MS_SCHED_PORT: '70000' {PORTS}"),
        ({"MS_SCHED_PORT": "abc"}, f"MS_SCHED_PORT: 'abc' {PORTS}"),
        ({"MS_WORKER_NUM": "0"}, "MS_WORKER_NUM: '0' is not valid; it must be a whole number from 1 to"),
        ({"MS_ROLE": "MS_PSERVER"}, "HOLDFAST_SERVER_NUM: '0' is not valid"),
        (
            {"MS_SCHED_HOST": "fd00::1"},
            "HOLDFAST_WORKER_IP (or MS_WORKER_IP): '' is not valid; "
            "it must be set where the scheduler has an IPv6 address other than ::1: fd00::1",
        ),
        (
            {"MS_WORKER_IP": "fd00::3"},
            "MS_WORKER_IP: 'fd00::3' is not valid; it must be an IPv4 address, as the scheduler's 127.0.0.1 is",
        ),
        (
            {"MS_SCHED_HOST": "::1", "MS_WORKER_IP": "127.0.0.1"},
            "MS_WORKER_IP: '127.0.0.1' is not valid; it must be an IPv6 address, as the scheduler's ::1 is",
        ),
        (
            {"MS_WORKER_IP": "fe80::3%eth0"},
            "MS_WORKER_IP: 'fe80::3%eth0' is not valid; a link-local address is not enough",
        ),
        (
            {"MS_NODE_ID": "server-0", "MS_SERVER_NUM": "1"},
            "MS_NODE_ID: 'server-0' is not valid; ids that begin with 'server-' are those of servers",
        ),
        (RECOVERY, "HOLDFAST_RECOVERY_PATH: '' is not valid; with recovery on, it must name a directory"),
        (
            {**RECOVERY, "MS_RECOVERY_PATH": "", "MS_ROLE": "MS_SCHED"},
            "HOLDFAST_RECOVERY_PATH: '' is not valid; with recovery on, it must name a directory",
        ),
        ({"HOLDFAST_LOG_DIR": "/proc/x"}, "HOLDFAST_LOG_DIR: '/proc/x' is not valid; it cannot be made: No such file"),
        (
            {"HOLDFAST_LOG_DIR": "/proc", "MS_NODE_ID": "0"},
            "HOLDFAST_LOG_DIR: '/proc' is not valid; it must be a directory where worker_0.log can be written: No such",
        ),
        (
            {"HOLDFAST_LOG_DIR": "/dev/null", "MS_ROLE": "MS_SCHED"},
            "HOLDFAST_LOG_DIR: '/dev/null' is not valid; it cannot be made: File exists",
        ),
        (
            {"MS_ROLE": "MS_SCHED", "MS_NODE_ID": "sched", "HOLDFAST_LOG_DIR": "/proc"},
            "'/proc' is not valid; it must be a directory where scheduler_sched.log can be written: ",
        ),
    ],
    ids=lambda value: " ".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else "",
)
def test_a_bad_setting_is_named_before_anything_is_loaded(variables: dict[str, str], said: str, tmp_path: Path) -> None:
    job = init_with(tmp_path, variables)
    assert said in job.err
    assert job.out == "no torch\n"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        job = init_with(tmp_path, {"MS_ROLE": "MS_SCHED", "MS_SCHED_PORT": str(port)})
    assert f"scheduler: '127.0.0.1:{port}' is not valid; it cannot listen there: Address already in use" in job.err
    assert job.out == "no torch\n"


def test_a_recovery_path_that_another_scheduler_uses_is_named_until_that_one_is_gone(tmp_path: Path) -> None:
    state = {**RECOVERY, "MS_ROLE": "MS_SCHED", "MS_RECOVERY_PATH": str(tmp_path / "state")}
    first = start(
        [PYTHON, "-c", SCRIPT], directory=tmp_path / "0", env={**GOOD, **state, "MS_SCHED_PORT": str(free_port())}
    )
    try:
        lock = tmp_path / "state" / "scheduler.lock"
        until(lambda: lock.exists() and lock.read_text(), within_s=60, what="it keeps its state", tell=first.story)
        job = init_with(tmp_path / "1", {**state, "MS_SCHED_PORT": str(free_port())})
        assert f"{state['MS_RECOVERY_PATH']}' is not valid; a scheduler that runs keeps its state there" in job.err
        assert job.out == "no torch\n"
    finally:
        first.destroy()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        job = init_with(tmp_path / "2", {**state, "MS_SCHED_PORT": str(port)})
    assert f"'127.0.0.1:{port}' is not valid; it cannot listen there" in job.err, "it could keep its state"


SERVER = {"MS_ROLE": "MS_PSERVER", "MS_SERVER_NUM": "1", "MS_TOPO_TIMEOUT": "2"}
"""It loads no torch."""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_where_no_scheduler_is_the_end_comes_in_time_and_names_the_address(host: str, tmp_path: Path) -> None:
    port = str(free_port())
    job = init_with(tmp_path, {**SERVER, "MS_SCHED_HOST": host, "MS_SCHED_PORT": port})
    assert f"no master at {host}:{port} within 2 s: connection refused" in job.err
    assert job.out == "no torch\n"


def test_where_something_else_than_a_scheduler_is_that_is_said(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        job = init_with(tmp_path, {**SERVER, "MS_SCHED_PORT": str(web.server_port)})
        web.shutdown()
    assert f"127.0.0.1:{web.server_port} answers (HTTP 404), but it is not a holdfast master" in job.err


def test_a_process_has_one_role_once(cluster: StartCluster, tmp_path: Path) -> None:
    it = cluster(1)
    it.script = tmp_path / "twice.py"
    it.script.write_text("import holdfast\nholdfast.init()\nholdfast.init()\n")
    it.scheduler()
    worker = it.worker(0)
    assert worker.wait(within_s=START_S) == 1
    assert "holdfast.init(): 'worker' is not valid; this process is a worker already: call it once" in worker.err
