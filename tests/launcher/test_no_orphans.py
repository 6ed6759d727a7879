"""Whichever of our processes is killed, and whenever: nothing that the job started outlives it, and nobody hangs.

Each round starts a job, kills a few processes that it should survive at random moments, and then one or two that it
cannot. The moments come from a seed, so that a round can be repeated.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Job, StartJob, kill, until

SCRIPT = """
import os, signal, subprocess, sys
{imports}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        # A daemon: its parent is gone, its session is its own, and it forks on.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        while True:
            signal.pause()
    os._exit(0)
os.wait()
os.write(1, " ".join(["ready", os.environ["RANK"], os.environ["HOLDFAST_GENERATION"]]).encode() + b"\\n")
while True:
    signal.pause()
"""

SURVIVABLE = ("worker", "interpreter", "master", "store")
FATAL = (("guard",), ("agent",), ("guard", "agent"), ("agent", "interpreter"), ("guard", "master"), ("agent", "worker"))
MAX_DELAY_S = 0.4
NEVER_RESTARTS_OUT = ("--max-restarts", "1000", "--shutdown-timeout", "0.1")

pytestmark = pytest.mark.timeout(180)


def pause_until(moment: float) -> None:
    """Let the job run until a moment that was drawn; nothing is being waited for."""
    time.sleep(max(0.0, moment - time.monotonic()))


def strike(job: Job, roles: tuple[str, ...], *, after_s: float) -> None:
    """Kill the processes in these roles at once, as soon as they exist and the delay is over."""
    begun = time.monotonic()
    until(lambda: all(job.find(role) for role in roles), within_s=30, what=f"processes {roles}", tell=job.story)
    pause_until(begun + after_s)
    pids = [pid for role in roles if (pid := job.find(role))]
    # Stopped first, so that none sees the other die.
    if len(pids) > 1:
        for pid in pids:
            kill(pid, signal.SIGSTOP)
    for pid in pids:
        kill(pid)


def expect_end(job: Job) -> None:
    job.wait()
    job.expect_nothing_left()


def suffer(job: Job, roles: list[tuple[str, ...]], draw: random.Random) -> None:
    for each in roles:
        assert job.process.poll() is None, job.story()
        strike(job, each, after_s=draw.uniform(0, MAX_DELAY_S))
    expect_end(job)


@pytest.mark.parametrize("seed", range(10))
def test_a_job_that_is_struck_again_and_again_leaves_nothing(run_job: StartJob, script: Callable[..., Path], seed: int):
    draw = random.Random(seed)
    path = script(SCRIPT.format(imports=""))
    job = run_job("--start-method", "spawn", "--nproc-per-node", 2, *NEVER_RESTARTS_OUT, path)
    fatal = FATAL[seed % len(FATAL)]
    # That the interpreter and then both above it die is a test of its own.
    first = [role for role in SURVIVABLE if role != "interpreter" or fatal != ("guard", "agent")]
    suffer(job, [*((draw.choice(first),) for _ in range(3)), fatal], draw)


def test_guard_and_agent_die_at_once_when_the_interpreter_has_died_before(
    run_job: StartJob, script: Callable[..., Path]
):
    """The workers are then below nobody of us, and only their own groups are tied to us."""
    path = script(SCRIPT.format(imports=""))
    job = run_job("--start-method", "spawn", "--nproc-per-node", 2, *NEVER_RESTARTS_OUT, path)
    job.wait_for_output("ready", times=2)
    strike(job, ("interpreter",), after_s=0)
    job.wait_for_output("the warm interpreter ended by signal 9")
    strike(job, ("guard", "agent"), after_s=0)
    expect_end(job)


@pytest.mark.parametrize("roles", [("guard",), ("agent",), ("interpreter",), ("guard", "agent")])
def test_a_job_that_is_struck_while_it_is_being_warmed(
    run_job: StartJob, script: Callable[..., Path], roles: tuple[str, ...]
):
    draw = random.Random(str(roles))
    job = run_job("--nproc-per-node", 2, *NEVER_RESTARTS_OUT, script(SCRIPT.format(imports="import torch")))
    strikes = [roles] if roles != ("interpreter",) else [roles, ("agent",)]
    suffer(job, strikes, draw)


@pytest.mark.parametrize("roles", [("guard", "agent"), ("agent", "interpreter")])
def test_a_warm_job_that_is_struck_while_it_trains(
    run_job: StartJob, script: Callable[..., Path], roles: tuple[str, ...]
):
    draw = random.Random(str(roles))
    job = run_job("--nproc-per-node", 2, *NEVER_RESTARTS_OUT, script(SCRIPT.format(imports="import torch")))
    job.wait_for_output("ready", times=2)
    suffer(job, [("worker",), ("interpreter",), ("worker",), roles], draw)


def test_what_a_script_leaves_running_ends_with_the_job(run_job: StartJob, script: Callable[..., Path]):
    source = SCRIPT.format(imports="").rpartition("while True")[0]
    job = run_job("--start-method", "spawn", "--nproc-per-node", 2, script(source))
    assert job.wait() == 0
    job.expect_nothing_left(within_s=3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_a_script_started_ends_when_the_job_is_stopped(
    run_job: StartJob, script: Callable[..., Path], number: int
):
    job = run_job("--start-method", "spawn", "--shutdown-timeout", "0.3", script(SCRIPT.format(imports="")))
    job.wait_for_output("ready")
    kill(job.pid, number)
    assert job.wait() == 128 + number
    job.expect_nothing_left(within_s=3)


def test_a_failed_worker_takes_its_daemons_along_before_the_next_generation(
    run_job: StartJob, script: Callable[..., Path]
):
    """A daemon of the dead generation could hold its port, its file lock or its GPU."""
    job = run_job("--start-method", "spawn", *NEVER_RESTARTS_OUT, script(SCRIPT.format(imports="")))
    job.wait_for_output("ready 0 1")
    ours = {job.find(role) for role in ("guard", "agent", "interpreter", "master")}
    before = set(job.processes()) - ours
    kill(job.wait_for_process("worker"))
    job.wait_for("workers_started", generation=2)
    assert not before & set(job.processes()), job.story()
    kill(job.pid, signal.SIGHUP)
    expect_end(job)
