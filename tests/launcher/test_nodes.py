"""Several nodes: agents on this machine that meet at one port, come late, fail, leave and are cut off."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Job, StartJob, free_port, is_alive, kill, until
from machines import ADDRESSES, MakeMachines

QUICK = ("--start-method", "spawn")
AT_ONCE = ("--rdzv-conf", "last_call_timeout=0.2")
TOGETHER = ("--rdzv-conf", "last_call_timeout=60")
"""Two of one or two nodes begin at once, but one of them waits for the other."""

HOLD_ON = """
import os, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
names = ("GROUP_RANK", "RANK", "WORLD_SIZE", "HOLDFAST_GENERATION")
with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=10):
    os.write(1, f"here {' '.join(os.environ[name] for name in names)}\\n".encode())
"""
WAIT = HOLD_ON + "signal.sigwait({signal.SIGUSR1})\n"

Script = Callable[..., Path]

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def node(run_job: StartJob) -> Callable[..., Job]:
    """Start an agent of the test's job with flags of its own."""
    endpoint = f"127.0.0.1:{free_port()}"

    def begin(*args: object, nnodes: str = "2") -> Job:
        return run_job(*QUICK, "--nnodes", nnodes, "--rdzv-endpoint", endpoint, "--rdzv-id", "j", *args)

    return begin


def pids_of(job: Job, generation: int) -> dict[int, int]:
    """Rank to process id on one node; its events tell of the other nodes' workers too."""
    mine = set(job.processes())
    started = [entry["pids"] for entry in job.events("workers_started") if entry["generation"] == generation]
    return {int(rank): pid for pids in started for rank, pid in pids.items() if pid in mine}


def finish(*jobs: Job, generation: int) -> None:
    for job in jobs:
        for pid in until(lambda: pids_of(job, generation), within_s=30, what="workers", tell=job.story).values():  # noqa: B023
            kill(pid, signal.SIGUSR1)


def here(job: Job, *, group: int, rank: int, size: int, generation: int) -> None:
    job.wait_for_output(f"here {group} {rank} {size} {generation}\n", within_s=40)


@pytest.mark.parametrize("first", [0, 1])
def test_nodes_meet_in_any_order_and_keep_the_ranks_they_ask_for(node: Callable[..., Job], script: Script, first: int):
    path = script(HOLD_ON)
    jobs = {first: node("--nproc-per-node", 2, "--node-rank", first, path)}
    jobs[first].wait_for("node_joined")
    second = 1 - first
    jobs[second] = node("--nproc-per-node", 2, "--node-rank", second, path)
    for rank, job in jobs.items():
        assert job.wait() == 0, job.story()
        for local in (0, 1):
            assert f"here {rank} {2 * rank + local} 4 1\n" in job.out


def test_nodes_of_different_sizes_and_without_ranks(node: Callable[..., Job], script: Script):
    path = script(HOLD_ON)
    jobs = [node("--nproc-per-node", number, path) for number in (1, 2)]
    assert [job.wait() for job in jobs] == [0, 0]
    lines = sorted(line for job in jobs for line in job.out.splitlines())
    assert len(lines) == 3
    assert sorted(int(line.split()[2]) for line in lines) == [0, 1, 2]
    assert {line.split()[3] for line in lines} == {"3"}


def test_a_lease_of_two_beats_is_enough(node: Callable[..., Job], script: Script):
    path = script("import time\ntime.sleep(6)\nprint('done')\n")
    jobs = [node("--rdzv-conf", "keep_alive_interval=2,keep_alive_max_attempt=2", path) for _ in range(2)]
    assert [job.wait() for job in jobs] == [0, 0]
    assert [job.out for job in jobs] == ["done\n", "done\n"]


def test_a_failure_on_one_node_restarts_both(node: Callable[..., Job], script: Script):
    path = script(
        HOLD_ON
        + """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        sys.exit(4)
    signal.pause()
"""
    )
    jobs = [node("--node-rank", rank, path) for rank in (0, 1)]
    assert [job.wait() for job in jobs] == [0, 0]
    for rank, job in enumerate(jobs):
        assert f"here {rank} {rank} 2 2\n" in job.out
        assert [entry["failure"]["exit_code"] for entry in job.events("worker_failed")] == [4]
        assert "exit code 4" in job.err


def test_every_node_ends_with_the_code_and_the_cause_of_the_failure(node: Callable[..., Job], script: Script):
    path = script("import os, signal, sys\nif os.environ['RANK'] == '1':\n    sys.exit(6)\nsignal.pause()\n")
    jobs = [node("--node-rank", rank, "--max-restarts", 0, path) for rank in (0, 1)]
    assert [job.wait() for job in jobs] == [6, 6]
    for job in jobs:
        assert "root cause: rank 1 on " in job.err


def test_a_dead_agent_leaves_the_others_to_go_on_alone(node: Callable[..., Job], script: Script):
    path = script(WAIT)
    host = node(*TOGETHER, "--node-rank", 0, path, nnodes="1:2")
    host.wait_for("node_joined")
    other = node(*TOGETHER, "--node-rank", 1, path, nnodes="1:2")
    here(other, group=1, rank=1, size=2, generation=1)
    here(host, group=0, rank=0, size=2, generation=1)
    theirs = pids_of(other, 1)
    kill(other.wait_for_process("agent"))
    here(host, group=0, rank=0, size=1, generation=2)
    assert not any(map(is_alive, theirs.values()))
    assert other.wait() == 128 + signal.SIGKILL
    assert "is dead" in host.events("node_lost")[0]["reason"], "proof, not the end of a lease"
    finish(host, generation=2)
    assert host.wait() == 0, host.story()


def test_a_latecomer_makes_the_world_grow_and_a_spare_takes_a_free_place(node: Callable[..., Job], script: Script):
    path = script(WAIT)
    first = node(*AT_ONCE, path, nnodes="1:2")
    here(first, group=0, rank=0, size=1, generation=1)
    second = node(*AT_ONCE, path, nnodes="1:2")
    here(first, group=0, rank=0, size=2, generation=2)
    here(second, group=1, rank=1, size=2, generation=2)
    third = node(*AT_ONCE, path, nnodes="1:2")
    until(lambda: len(first.events("node_joined")) == 3, within_s=30, what="the third node joins", tell=first.story)
    assert third.out == ""
    kill(second.wait_for_process("agent"))
    here(first, group=0, rank=0, size=2, generation=3)
    here(third, group=1, rank=1, size=2, generation=3)
    assert second.wait() == 128 + signal.SIGKILL
    assert [entry["restarts_used"] for entry in first.events("stopping")] == [1], "growing is no failure"
    finish(first, third, generation=3)
    assert [first.wait(), third.wait()] == [0, 0]


def test_a_node_that_is_asked_to_leave_costs_no_restart(node: Callable[..., Job], script: Script):
    path = script(WAIT)
    host = node(*TOGETHER, "--max-restarts", 0, path, nnodes="1:2")
    host.wait_for("node_joined")
    other = node(*TOGETHER, "--max-restarts", 0, path, nnodes="1:2")
    other.wait_for_output("here")
    host.wait_for_output("here")
    kill(other.pid, signal.SIGTERM)
    assert other.wait() == 128 + signal.SIGTERM
    here(host, group=0, rank=0, size=1, generation=2)
    assert "SIGTERM received" in host.events("node_lost")[0]["reason"]
    finish(host, generation=2)
    assert host.wait() == 0


def test_the_node_of_the_master_leaves_and_another_one_runs_it(node: Callable[..., Job], script: Script):
    path = script(WAIT)
    host = node(*AT_ONCE, path, nnodes="1:2")
    host.wait_for("node_joined")
    other = node(*AT_ONCE, path, nnodes="1:2")
    other.wait_for_output("here")
    host.wait_for_output("here")
    generation = other.events("world_formed")[-1]["generation"]
    kill(host.pid, signal.SIGTERM)
    assert host.wait() == 128 + signal.SIGTERM
    here(other, group=0, rank=0, size=1, generation=generation + 1)
    assert other.wait_for("master_moved")["voters"] == [other.events("world_formed")[-1]["placements"][0]["node"]]
    finish(other, generation=generation + 1)
    assert other.wait() == 0, other.story()


def test_an_interrupt_on_any_node_ends_the_job_on_all(node: Callable[..., Job], script: Script):
    path = script(WAIT)
    host = node(path)
    host.wait_for("node_joined")
    other = node(path)
    other.wait_for_output("here")
    host.wait_for_output("here")
    kill(other.pid, signal.SIGINT)
    assert [other.wait(), host.wait()] == [128 + signal.SIGINT] * 2
    assert "SIGINT received on" in host.err


def test_the_master_goes_on_elsewhere_when_its_node_is_lost_and_too_few_are_left(
    node: Callable[..., Job], script: Script
):
    path = script(WAIT)
    patience = ("--rdzv-conf", "join_timeout=16")
    host = node(*patience, path)
    host.wait_for("node_joined")
    other = node(*patience, path)
    other.wait_for_output("here")
    os.kill(host.pid, signal.SIGKILL)
    assert other.wait() == 1, other.story()
    assert "master moved to node" in other.err
    assert "no world within 16 s: 1 of 2 nodes are here" in other.err


# --- a real network -------------------------------------------------------------------------------------------

SYN_SENT = "02"
"""The state of a connection for which an answer is awaited."""


def test_a_node_that_is_cut_off_stops_its_workers_before_others_take_their_ranks(
    machines: MakeMachines, script: Script
):
    path = script(WAIT)
    beats = "keep_alive_interval=0.4,keep_alive_max_attempt=10,last_call_timeout=0.2"
    flags = ["--nnodes", "1:2", "--rdzv-endpoint", f"{ADDRESSES[0]}:9601", "--rdzv-conf", beats, *QUICK]
    this, there = machines(2)
    host = this.run(*flags, path)
    host.wait_for("node_joined")
    other = there.run(*flags, path)
    until(lambda: _is_together(host, other), within_s=40, what="a world of two", tell=host.story)
    generation = host.events("world_formed")[-1]["generation"]
    theirs = pids_of(other, generation)
    assert theirs
    there.cut_off()
    alone = host.wait_for("world_formed", generation=generation + 1, within_s=40)
    assert alone["world_size"] == 1
    assert not any(map(is_alive, theirs.values())), "two workers of one rank were alive at once"
    lost = host.events("node_lost")[0]
    assert "silent for 4 s" in lost["reason"]
    until(lambda: _is_dialling(other), within_s=40, what="who is cut off dials again", tell=other.story)
    there.heal()
    until(lambda: _is_together(host, other, after=generation + 1), within_s=30, what="both again", tell=other.story)
    finish(host, other, generation=host.events("world_formed")[-1]["generation"])
    assert [host.wait(), other.wait()] == [0, 0]
    for job in (host, other):
        job.expect_nothing_left()


def _is_dialling(job: Job) -> bool:
    agent = job.wait_for_process("agent")
    lines = Path(f"/proc/{agent}/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[3] == SYN_SENT for line in lines)


def _is_together(host: Job, other: Job, *, after: int = 0) -> bool:
    formed = host.events("world_formed")
    if not formed or formed[-1]["world_size"] != 2 or formed[-1]["generation"] <= after:
        return False
    generation = formed[-1]["generation"]
    return all(f"2 {generation}\n" in job.out and pids_of(job, generation) for job in (host, other))
