"""What happens when workers fail: who is blamed, what is restarted, and how the job ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import StartJob, is_alive, is_stopped, kill, until

Script = Callable[..., Path]

QUICK = ("--start-method", "spawn")
"""A script without torch comes up fastest in a fresh interpreter."""

WAIT_FOR_USR1 = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.write(1, f"ready {os.environ['RANK']}\\n".encode())
signal.sigwait({signal.SIGUSR1})
"""

pytestmark = pytest.mark.timeout(180)


def finish(workers: dict[int, int]) -> None:
    for pid in workers.values():
        kill(pid, signal.SIGUSR1)


# --- blame ----------------------------------------------------------------------------------------------------


def test_the_rank_that_failed_first_is_the_root_cause_even_if_its_echo_is_seen_first(run_job: StartJob, script: Script):
    path = script("""
        import os, signal, sys, time

        def explode(*_):
            raise ValueError("the real cause")

        if os.environ["RANK"] == "1":
            signal.signal(signal.SIGTERM, explode)
            os.write(os.open("alive", os.O_WRONLY), b"x")
            while True:
                time.sleep(0.01)
        open("alive").read(1)
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1")
    """)
    job_dir = path.parent / "job0"
    job_dir.mkdir()
    os.mkfifo(job_dir / "alive")
    job = run_job("--nproc-per-node", 2, "--max-restarts", 0, path)
    assert job.wait(within_s=60) == 1
    report = job.err[job.err.index("job failed:") :].splitlines()
    assert report[1] == "consequences:"
    assert report[2].startswith("  rank 0 ")
    assert "lost a peer: RuntimeError: Connection closed by peer" in report[2]
    assert report[3].startswith("root cause: rank 1 ")
    assert "ValueError: the real cause" in report[3]
    assert report[-1] == "  | ValueError: the real cause"
    outcome = job.events("job_finished")[0]["outcome"]
    assert (outcome["root_cause"]["rank"], [each["rank"] for each in outcome["consequences"]]) == (1, [0])


def test_the_job_ends_with_the_exit_code_of_the_first_failure_and_names_it(run_job: StartJob, script: Script):
    path = script("""
        import os, signal, sys
        if os.environ["RANK"] == "1":
            sys.exit(3)
        signal.pause()
    """)
    job = run_job(*QUICK, "--nproc-per-node", 3, "--max-restarts", 0, path)
    assert job.wait() == 3
    assert "root cause: rank 1 " in job.err
    assert "restarts are off (--max-restarts 0)" in job.err
    assert "consequences" not in job.err, "ranks that we stopped ourselves explain nothing"


@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSEGV, "SIGSEGV")])
def test_a_worker_that_dies_of_a_signal(run_job: StartJob, script: Script, number: int, words: str):
    job = run_job(*QUICK, "--nproc-per-node", 2, "--max-restarts", 0, script(WAIT_FOR_USR1))
    kill(job.wait_for_workers()[1], number)
    assert job.wait() == 128 + number
    assert words in job.err[job.err.index("root cause: rank 1 ") :]


# --- restarts -------------------------------------------------------------------------------------------------


def test_restarts_are_counted_for_the_whole_job(run_job: StartJob, script: Script):
    path = script("""
        import os, signal, sys
        restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        os.write(1, f"start {os.environ['RANK']} {restart} {os.environ['HOLDFAST_GENERATION']}\\n".encode())
        if int(os.environ["RANK"]) == restart % 2:
            sys.exit(5 + restart)
        signal.pause()
    """)
    job = run_job(*QUICK, "--nproc-per-node", 2, "--max-restarts", 2, path)
    assert job.wait() == 7
    failed = [entry["failure"] for entry in job.events("worker_failed")]
    assert [(failure["rank"], failure["exit_code"]) for failure in failed] == [(0, 5), (1, 6), (0, 7)]
    assert [entry["generation"] for entry in job.events("world_formed")] == [1, 2, 3]
    assert [entry["restarts_used"] for entry in job.events("stopping")] == [1, 2, 2]
    assert [entry["decision"] for entry in job.events("stopping")] == ["restart", "restart", "finish"]
    for restart in range(3):
        assert f"start {restart % 2} {restart} {restart + 1}" in job.out
    assert "2 of 2 restarts are used" in job.err


def test_a_failure_that_is_repaired_leaves_no_mark_on_the_exit_code(run_job: StartJob, script: Script):
    path = script("""
        import os, sys
        sys.exit(9 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
    """)
    job = run_job(*QUICK, path)
    assert job.wait() == 0
    again = job.wait_for("workers_started", generation=2)
    assert 0 < again["since_failure_ms"] < 10_000
    assert job.events("job_finished")[0]["restarts"] == 1


def test_process_groups_form_anew_in_every_generation(run_job: StartJob, script: Script):
    """The store must not serve the keys of the dead generation."""
    path = script("""
        import os, signal
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        os.write(1, f"sum {int(total)} restart {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())
        if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 3:
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(total)
        dist.destroy_process_group()
    """)
    job = run_job("--nproc-per-node", 2, path)
    assert job.wait(within_s=60) == 0, job.story()
    assert job.out.count("sum 2 restart 3\n") == 2
    repairs = [entry["since_failure_ms"] for entry in job.events("workers_started")][1:]
    assert len(repairs) == 3
    assert all(ms < 20_000 for ms in repairs), repairs


def test_a_stopped_peer_does_not_delay_a_restart(run_job: StartJob, script: Script):
    job = run_job(*QUICK, "--nproc-per-node", 2, "--shutdown-timeout", 60, script(WAIT_FOR_USR1))
    workers = job.wait_for_workers()
    job.wait_for_output("ready", times=2)
    kill(workers[1], signal.SIGSTOP)
    until(lambda: is_stopped(workers[1]), within_s=30, what="the peer is stopped")
    kill(workers[0])
    again = job.wait_for("workers_started", generation=2)
    assert again["since_failure_ms"] < 20_000, "the grace was waited out"
    assert not is_alive(workers[1])
    job.wait_for_output("ready", times=4)
    finish({int(rank): pid for rank, pid in again["pids"].items()})
    assert job.wait() == 0


# --- signals --------------------------------------------------------------------------------------------------

# These scripts sleep in a loop. One signal.pause() would miss a signal that comes just before it: Python has noted it
# by then, but runs the handler only when pause() returns.

HANDLES_SIGNALS = """
import os, signal, sys, time

def note(number, _frame):
    os.write(1, f"got {signal.Signals(number).name} {os.environ['RANK']}\\n".encode())
    if "stay" not in sys.argv:
        sys.exit(0)

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, note)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGQUIT"])
def test_a_signal_reaches_each_worker_once_and_ends_the_job(run_job: StartJob, script: Script, name: str):
    number = signal.Signals[name]
    job = run_job(*QUICK, "--nproc-per-node", 2, script(HANDLES_SIGNALS))
    job.wait_for_output("ready", times=2)
    # To the whole group, as a terminal does.
    os.killpg(job.pid, number)
    assert job.wait(within_s=25) == 128 + number
    assert job.out.count("got") == 2
    for rank in (0, 1):
        assert f"got {name} {rank}\n" in job.out
    assert f"{name} received" in job.err


def test_workers_that_ignore_a_signal_are_killed_when_the_grace_is_over(run_job: StartJob, script: Script):
    job = run_job(*QUICK, "--shutdown-timeout", "4", script(HANDLES_SIGNALS), "stay")
    job.wait_for_output("ready")
    [pid] = job.wait_for_workers().values()
    kill(job.pid, signal.SIGTERM)
    asked = job.wait_for("stopping")
    assert job.wait(within_s=25) == 128 + signal.SIGTERM
    ended = job.events("job_finished")[0]
    assert 2 <= ended["elapsed_s"] - asked["elapsed_s"] < 20
    assert not is_alive(pid)


def test_a_second_interrupt_does_not_wait(run_job: StartJob, script: Script):
    job = run_job(*QUICK, "--shutdown-timeout", "60", script(HANDLES_SIGNALS), "stay")
    job.wait_for_output("ready")
    os.killpg(job.pid, signal.SIGINT)
    job.wait_for_output("got SIGINT")
    assert job.process.poll() is None
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(within_s=30) == 128 + signal.SIGINT
    assert job.out.count("got") == 1


def test_a_hang_up_kills_at_once(run_job: StartJob, script: Script):
    job = run_job(*QUICK, "--shutdown-timeout", "60", "--nproc-per-node", 2, script(HANDLES_SIGNALS), "stay")
    job.wait_for_output("ready", times=2)
    kill(job.pid, signal.SIGHUP)
    assert job.wait(within_s=30) == 128 + signal.SIGHUP
    assert "got" not in job.out


def test_an_interrupt_while_the_interpreter_is_being_warmed(run_job: StartJob, script: Script):
    job = run_job(script("import torch\n"))
    job.wait_for_process("interpreter")
    job.wait_for("world_formed")
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(within_s=25) == 128 + signal.SIGINT


def test_only_the_signals_that_were_named_are_passed_on(run_job: StartJob, script: Script):
    path = script("""
        import signal, sys, time
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print("got SIGUSR1", flush=True)))
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
    """)
    job = run_job(*QUICK, "--signals-to-handle", "SIGUSR1", path)
    job.wait_for_output("ready")
    kill(job.pid, signal.SIGUSR1)
    assert job.wait(within_s=25) == 128 + signal.SIGUSR1
    assert "got SIGUSR1" in job.out


# --- our own processes ----------------------------------------------------------------------------------------


def test_the_death_of_the_warm_interpreter_harms_nobody(run_job: StartJob, script: Script):
    job = run_job("--nproc-per-node", 2, script(WAIT_FOR_USR1))
    workers = job.wait_for_workers()
    job.wait_for_output("ready", times=2)
    old = job.wait_for_process("interpreter")
    kill(old)
    job.wait_for_output("the warm interpreter ended by signal 9")
    new = until(
        lambda: (pid := job.find("interpreter")) not in (None, old) and pid, within_s=30, what="a new interpreter"
    )
    assert new != old
    assert all(map(is_alive, workers.values()))
    finish(workers)
    assert job.wait() == 0, job.story()
    assert len(job.events("workers_started")) == 1


def test_a_failure_after_the_death_of_the_interpreter_is_repaired(run_job: StartJob, script: Script):
    job = run_job("--nproc-per-node", 2, script(WAIT_FOR_USR1))
    workers = job.wait_for_workers()
    job.wait_for_output("ready", times=2)
    kill(job.wait_for_process("interpreter"))
    job.wait_for_output("the warm interpreter ended by signal 9")
    kill(workers[0])
    again = job.wait_for_workers(2)
    assert not any(map(is_alive, workers.values()))
    job.wait_for_output("ready", times=4)
    finish(again)
    assert job.wait() == 0, job.story()


def test_the_death_of_the_master_harms_nobody(run_job: StartJob, script: Script):
    job = run_job(*QUICK, "--nproc-per-node", 2, script(WAIT_FOR_USR1))
    workers = job.wait_for_workers()
    job.wait_for_output("ready", times=2)
    for _ in range(2):
        kill(master := job.wait_for_process("master"))
        until(lambda: job.find("master") not in (None, master), within_s=30, what="another master")
    assert all(map(is_alive, workers.values()))
    kill(workers[0])
    again = job.wait_for_workers(2)
    job.wait_for_output("ready", times=4)
    finish(again)
    assert job.wait() == 0, job.story()
    assert [entry["restarts_used"] for entry in job.events("stopping")] == [1]
    numbers = [entry["seq"] for entry in job.events()]
    assert numbers == sorted(set(numbers)), "the story is told once and in order"


def test_what_happens_while_nobody_listens_to_the_master_is_told_later(run_job: StartJob, script: Script):
    job = run_job(*QUICK, script(WAIT_FOR_USR1))
    workers = job.wait_for_workers()
    job.wait_for_output("ready")
    kill(job.wait_for_process("master"))
    job.wait_for("master_restored", within_s=25)
    finish(workers)
    assert job.wait() == 0


def test_the_death_of_the_store_restarts_the_workers(run_job: StartJob, script: Script):
    job = run_job(*QUICK, "--nproc-per-node", 2, script(WAIT_FOR_USR1))
    job.wait_for_output("ready", times=2)
    kill(job.wait_for_process("store"))
    again = job.wait_for_workers(2)
    assert "the workers' store died" in job.events("stopping")[0]["reason"]
    job.wait_for_output("ready", times=4)
    finish(again)
    assert job.wait() == 0


def test_a_worker_of_the_first_generation_is_gone_before_the_second_starts(run_job: StartJob, script: Script):
    path = script("""
        import os, signal, subprocess
        print("ready", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        os.write(1, f"child {child.pid}\\n".encode())
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            signal.pause()
    """)
    job = run_job(*QUICK, "--nproc-per-node", 2, "--shutdown-timeout", "0.2", path)
    job.wait_for_output("child", times=2)
    first = job.wait_for_workers()
    children = [int(line.split()[1]) for line in job.out.splitlines() if line.startswith("child")][:2]
    kill(first[0])
    job.wait_for_workers(2)
    assert not any(map(is_alive, [*first.values(), *children]))
    assert job.wait() == 0
