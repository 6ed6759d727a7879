"""The master's port, as people and scripts see it while a job runs."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import StartJob, free_port, kill, listening_ports, stream, until

WAIT_FOR_USR1 = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.write(1, f"ready {os.environ['RANK']}\\n".encode())
signal.sigwait({signal.SIGUSR1})
"""
QUICK = ("--start-method", "spawn")
NUM_READERS = 50

pytestmark = pytest.mark.timeout(150)


def get(port: int, path: str, *, headers: dict[str, str] | None = None) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers or {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_a_running_job_answers_on_one_port(run_job: StartJob, script: Callable[..., Path]):
    job = run_job(*QUICK, "--nproc-per-node", 2, "--rdzv-id", "run7", script(WAIT_FOR_USR1))
    workers = job.wait_for_workers()
    master = job.wait_for_process("master")
    [port] = listening_ports(master)

    assert get(port, "/healthz")["ok"] is True
    view = get(port, "/api/job")
    assert (view["job_id"], view["phase"], view["generation"], view["restarts"]) == ("run7", "running", 1, 0)
    assert view["world"]["size"] == 2
    [node] = view["nodes"].values()
    assert node["num_workers"] == 2
    assert set(node["status"]["pids"]) == set(workers.values())
    assert view["outcome"] is None

    told = stream(port)
    known = job.events()
    assert [next(told) for _ in known] == known
    job.wait_for_output("ready", times=2)
    for pid in workers.values():
        kill(pid, signal.SIGUSR1)
    rest = list(told)
    assert rest[-1]["kind"] == "job_finished", "the stream ends with the job"
    assert job.wait() == 0


def test_everybody_who_reads_along_hears_the_end(run_job: StartJob, script: Callable[..., Path]):
    port = free_port()
    job = run_job(*QUICK, "--rdzv-endpoint", f"127.0.0.1:{port}", script(WAIT_FOR_USR1))
    job.wait_for_output("ready")
    readers = [stream(port) for _ in range(NUM_READERS)]
    for reader in readers:
        next(reader)
    for pid in job.wait_for_workers().values():
        kill(pid, signal.SIGUSR1)
    assert [list(reader)[-1]["kind"] for reader in readers] == ["job_finished"] * NUM_READERS
    assert job.wait() == 0


def test_the_stream_goes_on_where_a_reader_left_off_even_at_another_master(
    run_job: StartJob, script: Callable[..., Path]
):
    port = free_port()
    job = run_job(*QUICK, "--rdzv-endpoint", f"127.0.0.1:{port}", script(WAIT_FOR_USR1))
    job.wait_for_output("ready")
    last = job.wait_for("workers_started")["seq"]
    old = job.wait_for_process("master")
    kill(old)
    until(lambda: job.find("master") not in (None, old), within_s=30, what="another master")
    told = stream(port, after=last)
    restored = next(told)
    assert (restored["kind"], restored["seq"]) == ("master_restored", last + 1)
    for pid in job.wait_for_workers().values():
        kill(pid, signal.SIGUSR1)
    assert [entry["kind"] for entry in told][-1] == "job_finished"
    assert job.wait() == 0


def test_a_job_with_a_token_tells_strangers_nothing(run_job: StartJob, script: Callable[..., Path]):
    job = run_job(*QUICK, script(WAIT_FOR_USR1), env={"HOLDFAST_TOKEN": "sesame"})
    job.wait_for_output("ready")
    master = job.wait_for_process("master")
    [port] = listening_ports(master)
    assert get(port, "/healthz")["ok"] is True
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for path in ("/api/job", "/api/events"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(port, path, headers=headers)
            assert refused.value.code == 401
            refused.value.close()
    assert get(port, "/api/job", headers={"Authorization": "Bearer sesame"})["phase"] == "running"
    assert "sesame" not in " ".join(Path(f"/proc/{master}/cmdline").read_text().split("\0"))
    for pid in job.wait_for_workers().values():
        kill(pid, signal.SIGUSR1)
    assert job.wait() == 0
