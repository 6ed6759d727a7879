"""Nodes that are checked before they are used: real probes on this machine, some of them killed, held up or cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from jobs import PYTHON, Job, StartJob, cmdline, free_port, is_alive, kill, until

from holdfast.agent import requests
from holdfast.agent.interpreter import Interpreter
from holdfast.agent.prober import Prober
from holdfast.core import workers as core
from holdfast.core.health.results import CheckResult
from holdfast.core.ids import Check

Script = Callable[..., Path]

GREET = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()}\\n".encode())
"""

LOOK_S = 0.005
AT_ONCE = ("--rdzv-conf", "last_call_timeout=0.2")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def node(run_job: StartJob) -> Callable[..., Job]:
    endpoint = f"127.0.0.1:{free_port()}"

    def begin(*args: object, nnodes: str = "2") -> Job:
        return run_job("--nnodes", nnodes, "--rdzv-endpoint", endpoint, "--network-check", *AT_ONCE, *args)

    return begin


def probes_of(job: Job) -> list[int]:
    return [pid for pid in job.processes() if "holdfast.agent.probe" in cmdline(pid)]


@contextlib.contextmanager
def disturbing(job: Job, disturb: Callable[[int], None]) -> Iterator[list[int]]:
    """Do something to every probe of a node, over and over, as long as it lives; gives those it was done to."""
    over, met = threading.Event(), []

    def work() -> None:
        while not over.is_set():
            for pid in probes_of(job):
                met.append(pid)
                while is_alive(pid) and not over.is_set():
                    disturb(pid)
            over.wait(LOOK_S)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield met
    finally:
        over.set()
        thread.join()


def hold_up(pid: int) -> None:
    """Let it run for a fifteenth of the time."""
    kill(pid, signal.SIGSTOP)
    time.sleep(0.03)  # what is done to it, not a wait for anything
    kill(pid, signal.SIGCONT)
    time.sleep(0.002)


def test_a_node_whose_probe_is_killed_is_refused_and_another_one_takes_its_place(
    node: Callable[..., Job], script: Script
):
    path = script(GREET)
    host = node("--node-rank", 0, path)
    host.wait_for("node_joined")
    bad = node(path)
    with disturbing(bad, kill) as killed:
        refused = host.wait_for("node_unfit")
        assert bad.wait() == 1
    assert len(set(killed)) >= 2, "it had a second chance"
    assert (refused["fitness"], refused["metric"], refused["decision"]) == ("failed", "probe", "refused")
    assert refused["reason"] == "the probe was killed by SIGKILL"
    assert "failed the node check (probe): the probe was killed by SIGKILL; refused" in bad.err
    bad.expect_nothing_left()
    tables = host.events("check_round")
    assert [(table["check_id"], table["round"]) for table in tables] == [(1, 1), (1, 2)]
    assert [{row["verdict"] for row in table["rows"]} for table in tables] == [{"failed", "fit"}] * 2

    replacement = node(path)
    assert [host.wait(), replacement.wait()] == [0, 0], host.story()
    helped = host.events("check_round")[-1]
    assert (helped["check_id"], sorted(row["verdict"] for row in helped["rows"])) == (2, ["fit", "helps"])
    assert "rank 0 of 2" in host.out
    assert "check 1, round 1:" in host.err


def test_a_slow_node_is_refused_where_stragglers_are_excluded(node: Callable[..., Job], script: Script):
    path = script(GREET)
    host = node("--exclude-straggler", path, nnodes="2:3")
    host.wait_for("node_joined")
    slow = node(path, nnodes="2:3")
    with disturbing(slow, hold_up):
        other = node(path, nnodes="2:3")
        refused = host.wait_for("node_unfit", within_s=90)
        assert slow.wait() == 1, slow.story()
    assert (refused["fitness"], refused["decision"]) == ("slow", "refused")
    assert [host.wait(), other.wait()] == [0, 0], host.story()
    assert {entry["node"] for entry in host.events("node_unfit")} == {refused["node"]}, "nobody else is accused"
    assert "of 2" in host.out + other.out


def test_a_cold_probe_measures_too_and_a_master_that_dies_goes_on_with_the_check(
    node: Callable[..., Job], script: Script
):
    path = script(GREET)
    host = node("--start-method", "spawn", path)
    master = host.wait_for_process("master")
    other = node("--start-method", "spawn", path)
    until(lambda: probes_of(other), within_s=30, what="a probe", tell=other.story)
    kill(master)
    assert [host.wait(within_s=60), other.wait(within_s=60)] == [0, 0], host.story()
    assert "started again from its journal" in host.err
    assert host.events("check_round")[0]["check_id"] == 1
    # A node beside whose probe a master is started may well be slow; it is used all the same.
    assert {entry["decision"] for entry in host.events("node_unfit")} <= {"used"}


# --- the probe alone -------------------------------------------------------------------------------------------


class Cold:
    """Starts probes as the interpreter does when it is cold."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.started: asyncio.Queue[subprocess.Popen[bytes]] = asyncio.Queue()
        self.notify: Callable[[requests.Reply], None] = lambda reply: None

    def probe(self, request: requests.Probe, fds: list[int]) -> None:
        process = subprocess.Popen(request.argv(PYTHON, tuple(fds)), pass_fds=fds, stderr=subprocess.DEVNULL)
        self.started.put_nowait(process)
        self.notify(requests.ProbeStarted(request.check_id, request.round, process.pid))


def test_a_probe_that_hangs_is_killed_and_has_failed():
    async def hang() -> tuple[core.Event, int]:
        told: asyncio.Queue[core.Event] = asyncio.Queue()
        interpreter = Cold()
        with socket.create_server(("127.0.0.1", 0)) as store:
            prober = Prober(
                num_threads=1,
                interpreter=cast(Interpreter, interpreter),
                store=store,
                put=told.put_nowait,
                alone_s=0.5,
            )
            interpreter.notify = prober.on_interpreter
            prober.probe(Check(3, 1, "127.0.0.1"))
            process = await asyncio.wait_for(interpreter.started.get(), 10)
            process.send_signal(signal.SIGSTOP)
            event = await asyncio.wait_for(told.get(), 30)
            code = await asyncio.to_thread(process.wait, 10)
            return event, code

    event, code = asyncio.run(hang())
    assert event == core.Probed(CheckResult(3, 1, error="the probe did not get on within 0.5 s"))
    assert code == -signal.SIGKILL


def test_a_node_that_cannot_use_its_own_address_has_failed():
    reader, writer = os.pipe()
    request = requests.Probe(3, 1, "192.0.2.1", 1)
    subprocess.run(request.argv(PYTHON, (0, writer, 0)), pass_fds=(writer,), check=True, timeout=60)
    os.close(writer)
    with open(reader) as results:
        result = msgspec.json.decode(results.readline(), type=CheckResult)
    assert result.is_whole
    assert "its own address 192.0.2.1 cannot be used: " in result.error
