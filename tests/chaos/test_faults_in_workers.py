"""Faults in jobs of `holdfast run`: in the steps of workers, and in the probes of a node's check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import StartJob, free_port, is_alive, parent, until
from victims import Victim

from holdfast.chaos.api import Target
from holdfast.chaos.injection import Injection, inject
from holdfast.chaos.jobs import JobView, open_job
from holdfast.chaos.pids import identify
from holdfast.chaos.scripts import beacon_of
from holdfast.chaos.targets import find
from holdfast.errors import JobError

NOBODY = "no node of the job is on this machine, or all are gone"
TRAIN = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
import holdfast

stop_file = Path(sys.argv[1])
run = holdfast.init()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
run.protect(model=model, optimizer=optimizer)
net = run.data_parallel(model)

@run.step
def train(step):
    stop = torch.tensor(float(stop_file.exists()))
    dist.all_reduce(stop)
    optimizer.zero_grad()
    net(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    return bool(stop)

for step in run.steps(total=1_000_000):
    if train(step):
        run.stop("asked to")
finite = all(bool(each.isfinite().all()) for each in model.parameters())
os.write(1, f"rank {run.rank} pid {os.getpid()} finite {finite}\\n".encode())
"""


def test_workers_carry_out_what_is_ordered(run_job: StartJob, script: Callable[..., Path], tmp_path: Path) -> None:
    port, stop = free_port(), tmp_path / "stop"
    job = run_job("--nproc-per-node", 2, "--rdzv-endpoint", f"localhost:{port}", script(TRAIN), stop)
    pids = job.wait_for_workers()
    by_port, by_file = open_job(f"localhost:{port}"), open_job(str(job.events_file))
    assert find(by_port, "rank:1") == find(by_file, "rank:1")
    target = find(by_port, "rank:1")
    assert target.pids == (pids[1],)
    assert find(by_port, "master").pids == (job.wait_for_process("master"),)
    expect_no_stranger_is_struck(job.events_file, tmp_path / "edited.jsonl")

    def order(fault: str, **parameters: str) -> Injection | None:
        try:
            return inject(fault, target, parameters=parameters)
        except JobError:
            return None  # It has not called init() yet.

    with until(lambda: order("exception"), within_s=60, what="an order to be taken", tell=job.story):
        opened = job.wait_for("incident_opened", number=1, within_s=60)
    assert opened["strategy"] == "retry"
    job.wait_for("incident_closed", number=1, verdict="repaired", within_s=60)
    with inject("damaged-tensor", target, parameters={"tensor": "model.bias"}):
        job.wait_for("incident_closed", number=2, verdict="repaired", within_s=60)
    assert "model.bias was damaged on order" in str(job.events()), job.story()

    order_of = Path(beacon_of(pids[1]) + ".fault")
    with inject("exception", target, parameters={"step": str(10**9)}) as injection:
        assert "at step 1000000000" in injection.did
        assert order_of.exists()
    assert not order_of.exists()
    with pytest.raises(JobError, match="step 1 is over"):
        inject("exception", target, parameters={"step": "1"})

    stop.touch()
    assert job.wait(within_s=60) == 0, job.story()
    for rank in (0, 1):
        assert f"rank {rank} pid {pids[rank]} finite True" in job.out, "nobody was started again"
    assert len(job.events("incident_opened")) == 2
    with pytest.raises(JobError, match=NOBODY):
        by_file.look()


def expect_no_stranger_is_struck(events: Path, edited: Path) -> None:
    """Of a job that runs, with something in its story that is not so."""
    us = os.getpid()

    def look(edit: Callable[[dict[str, Any]], dict[str, Any]]) -> JobView:
        entries = map(json.loads, events.read_text().splitlines())
        edited.write_text("".join(json.dumps(edit(entry)) + "\n" for entry in entries))
        return open_job(str(edited)).look()

    def with_another(kind: str, /, **fields: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda entry: entry | fields if entry["kind"] == kind else entry

    (node,) = look(with_another("none")).nodes
    assert sorted(node.workers) == [0, 1]
    assert node.root_pid == parent(node.agent_pid or 0)
    for strange in ({"pid": us}, {"pid": parent(us)}, {"pid": 1}, {"pid_space": "another boot"}):
        with pytest.raises(JobError, match=NOBODY):
            look(with_another("node_joined", **strange))
    with pytest.raises(JobError, match=NOBODY):
        look(with_another("workers_started", kind="job_finished"))
    (node,) = look(with_another("workers_started", pids={"0": us, "1": node.workers[1]})).nodes
    assert list(node.workers) == [1], "the other is not below the agent"


def test_probes_of_a_check_are_killed_and_nobody_else(victim: Victim) -> None:
    def start(*words: str) -> int:
        code = (
            f"__import__('subprocess').Popen([{sys.executable!r}, '-c', 'import time; time.sleep(100)', *{words}]).pid"
        )
        pid: int = victim.ask(code)
        return pid

    agent = identify(victim.pid)
    assert agent is not None
    other = start("-m", "another")
    with inject("kill-probes", Target(name="node-0", node="node-0", processes=(agent,), agent=agent)):
        for _ in range(2):
            probe = start("-m", "holdfast.agent.probe")
            until(lambda pid=probe: not is_alive(pid), within_s=30, what="the probe to be killed")
    probe = start("-m", "holdfast.agent.probe")
    assert victim.ask(f"(time.sleep(0.2), os.path.exists('/proc/{probe}/stat'))[1]")
    assert is_alive(probe)
    assert is_alive(other)
    subprocess.run(["kill", str(probe), str(other)], check=True)
