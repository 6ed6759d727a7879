"""Nodes that cannot meet say why, in time, and leave those that could alone."""

from __future__ import annotations

import http.server
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import Job, StartJob, free_port, kill

QUICK = ("--start-method", "spawn")
SCRIPT = "print('the script was run', flush=True)\n"
SOON = ("--rdzv-conf", "join_timeout=1")

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def path(script: Callable[..., Path]) -> Path:
    return script(SCRIPT)


def expect_failure(job: Job, *words: str, within_s: float = 60) -> None:
    assert job.wait(within_s=within_s) == 1, job.story()
    assert job.out == ""
    assert "Traceback" not in job.err
    last = job.err.splitlines()[-1]
    for word in words:
        assert word in last, job.err


def serve(answer: Callable[[socket.socket], None]) -> tuple[socket.socket, int]:
    """A server that answers each connection in its own way, until its socket is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def loop() -> None:
        connections = []
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                for connection in connections:
                    connection.close()
                return
            connections.append(connection)
            answer(connection)

    threading.Thread(target=loop, daemon=True).start()
    return listener, listener.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    listener, port = serve(lambda connection: None)
    yield port
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def rude_port() -> Iterator[int]:
    """Like a login service: it speaks first, and not HTTP."""
    listener, port = serve(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n"))
    yield port
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def web_port() -> Iterator[int]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


# --- alone ----------------------------------------------------------------------------------------------------


def test_the_port_for_the_workers_is_taken(run_job: StartJob, path: Path, silent_port: int):
    job = run_job(*QUICK, "--master-port", silent_port, path)
    expect_failure(job, "--master-port", str(silent_port), "in use")


def test_the_others_do_not_come_in_time(run_job: StartJob, path: Path):
    job = run_job(*QUICK, *SOON, "--nnodes", 3, "--rdzv-endpoint", f"127.0.0.1:{free_port()}", path)
    expect_failure(job, "1 s", "1 of 3 nodes are here")


def test_nobody_listens_at_the_endpoint(run_job: StartJob, path: Path):
    """Bound, so we cannot serve there ourselves, but not listening: whoever dials is refused."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{holder.getsockname()[1]}"
        job = run_job(*QUICK, *SOON, "--nnodes", 2, "--rdzv-endpoint", endpoint, path)
        expect_failure(job, endpoint, "1 s")


def test_a_web_server_is_at_the_endpoint(run_job: StartJob, path: Path, web_port: int):
    job = run_job(*QUICK, "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{web_port}", path)
    expect_failure(job, f"127.0.0.1:{web_port}", "not a holdfast master")


def test_something_that_never_answers_is_at_the_endpoint(run_job: StartJob, path: Path, silent_port: int):
    job = run_job(*QUICK, *SOON, "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{silent_port}", path)
    expect_failure(job, f"127.0.0.1:{silent_port}")


def test_something_that_does_not_speak_http_is_at_the_endpoint(run_job: StartJob, path: Path, rude_port: int):
    job = run_job(*QUICK, *SOON, "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{rude_port}", path)
    expect_failure(job, f"127.0.0.1:{rude_port}")


# --- together -------------------------------------------------------------------------------------------------


def test_nodes_that_do_not_belong_are_refused_and_the_job_goes_on(run_job: StartJob, path: Path, tmp_path: Path):
    endpoint = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    good = {"HOLDFAST_TOKEN": "sesame"}
    (tmp_path / "wrong").write_text("simsim\n")
    host = run_job(*QUICK, "--nnodes", 2, "--node-rank", 0, "--rdzv-id", "j1", *endpoint, path, env=good)
    host.wait_for("node_joined")

    strangers = {
        "without a token": (run_job(*QUICK, "--nnodes", 2, "--rdzv-id", "j1", *endpoint, path), "a token is needed"),
        "with another token": (
            run_job(*QUICK, "--nnodes=2", "--rdzv-id=j1", *endpoint, "--token-file", tmp_path / "wrong", path),
            "the token is wrong",
        ),
    }
    for job, words in strangers.values():
        expect_failure(job, words, "--token-file")
    others = {
        "--nnodes": (run_job(*QUICK, "--nnodes", "2:3", "--rdzv-id", "j1", *endpoint, path, env=good), "2:3"),
        "--rdzv-id": (run_job(*QUICK, "--nnodes", 2, "--rdzv-id", "j2", *endpoint, path, env=good), "'j2'"),
        "--node-rank": (
            run_job(*QUICK, "--nnodes", 2, "--node-rank", 0, "--rdzv-id", "j1", *endpoint, path, env=good),
            "--node-rank 0 is taken",
        ),
    }
    for flag, (job, words) in others.items():
        expect_failure(job, flag, words)
    assert len(host.events("node_refused")) == len(others)
    assert len(host.events("node_joined")) == 1

    friend = run_job(*QUICK, "--nnodes", 2, "--rdzv-id", "j1", *endpoint, path, env=good)
    assert host.wait() == 0
    assert friend.wait() == 0
    assert (host.out + friend.out).count("the script was run") == 2


def test_jobs_of_one_node_do_not_share_an_endpoint(run_job: StartJob, script: Callable[..., Path]):
    endpoint = f"127.0.0.1:{free_port()}"
    path = script("import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    first = run_job(*QUICK, "--rdzv-endpoint", endpoint, "--rdzv-id", "same", path)
    first.wait_for_output("ready")
    second = run_job(*QUICK, "--rdzv-endpoint", endpoint, "--rdzv-id", "same", path)
    expect_failure(second, "--rdzv-endpoint", endpoint, "in use")
    intruder = run_job(*QUICK, "--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "same", path)
    expect_failure(intruder, endpoint, "--nnodes 1:1")
    assert first.process.poll() is None
    kill(first.pid, signal.SIGHUP)
    assert first.wait() == 128 + signal.SIGHUP
