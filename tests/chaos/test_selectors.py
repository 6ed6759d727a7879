"""Faults in submitted jobs: whom a selector means, and what becomes of the job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import HOLDFAST, Job, clean_env, cmdline, is_alive, is_stopped, parent, start, until

from holdfast.chaos.experiment_file import names
from holdfast.chaos.injection import inject
from holdfast.chaos.jobs import JobHandle, open_job
from holdfast.chaos.targets import find
from holdfast.errors import JobError, SpecError
from holdfast.platforms.local.cgroups import find_hierarchy
from holdfast.platforms.local.network import obstacle

WAIT = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write(1, f"here {os.environ['RANK']} {os.environ['HOLDFAST_GENERATION']}\\n".encode())
signal.pause()
"""
FLAGS = ("--start-method", "spawn", "--last-call-timeout", "30", "--beat-interval", "0.2", "--name", "j")
SHARED = ("--network", "host", "--limits", "watchdog")
APART = ("--network", "namespace", "--limits", "cgroup")
WITHIN_S = 60.0


@pytest.fixture
def submit(
    tmp_path: Path, script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Job]]:
    runtime = tempfile.mkdtemp(prefix="holdfast_")
    monkeypatch.setenv("HOLDFAST_RUNTIME_DIR", runtime)
    jobs: list[Job] = []

    def begin(*flags: str) -> Job:
        command = [HOLDFAST, "submit", *FLAGS, *flags, "--", str(script(WAIT))]
        jobs.append(start(command, directory=tmp_path / "job", env={"HOLDFAST_RUNTIME_DIR": runtime}))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.destroy()
    shutil.rmtree(runtime)


@pytest.fixture(params=["shared", "apart"])
def where(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if request.param == "shared":
        return SHARED
    if reason := obstacle() or ("" if find_hierarchy() else "no control groups can be made here"):
        pytest.skip(reason)
    return APART


def running(job: Job, num_ranks: int, generation: int) -> JobHandle:
    """The job, once the workers of a generation are there."""
    for rank in range(num_ranks):
        job.wait_for_output(f"here {rank} {generation}\n", within_s=WITHIN_S)
    handle = open_job("j")
    ranks = lambda: sorted(rank for node in handle.look().nodes for rank in node.workers)  # noqa: E731
    until(lambda: ranks() == list(range(num_ranks)), within_s=WITHIN_S, what="all ranks", tell=job.story)
    return handle


def test_every_selector_means_what_it_says(submit: Callable[..., Job], where: tuple[str, ...]) -> None:
    job = submit("--nodes", "2", "--processes", "2", *where)
    handle = running(job, 4, 1)
    rank, agent, master = find(handle, "rank:3"), find(handle, "agent:node-1"), find(handle, "master")
    node = find(handle, "node:node-1")
    assert parent(agent.pids[0]) == node.pids[0]
    assert {agent.pids[0], rank.pids[0]} < set(node.pids)
    assert job.wait_for("workers_started", node="node-1")["pids"]["3"] == rank.pids[0]
    assert rank.node == agent.node == node.node == "node-1"
    assert "holdfast.master.main" in cmdline(master.pids[0])
    assert find(handle, "role:worker/1") == node
    assert Path(node.directory).name == "node-1"
    assert bool(node.cgroups) == bool(node.network) == (where == APART)
    chosen = {find(open_job("j", seed=seed), "any").name for seed in range(20)}
    assert len(chosen) == 4, "any is each of them, by the seed"
    assert find(open_job("j", seed=7), "any") == find(open_job("j", seed=7), "any")

    mistakes = {
        "node:node-7": "a node that runs: node-0, node-1",
        "rank:4": "a rank that runs: 0, 1, 2, 3",
        "role:ps/0": "role:worker/0, role:worker/1",
        "rank:x": "node:NAME, rank:N, role:ROLE/INDEX, agent:NAME, master, any",
    }
    for selector, valid in mistakes.items():
        with pytest.raises(SpecError, match=f"--target: '{selector}' is not valid; .*{valid}"):
            find(handle, selector)
    if where == SHARED and os.geteuid() == 0:
        with pytest.raises(JobError, match="shares this machine's"):
            inject("network-loss", node)

    with inject("stop", node):
        assert all(map(is_stopped, node.pids))
    assert not any(map(is_stopped, node.pids))
    inject("kill", master)
    job.wait_for("master_restored", within_s=WITHIN_S)
    assert not is_alive(master.pids[0])
    did = inject("kill", find(handle, "node:node-0")).did
    assert did.startswith("SIGKILL to node-0 (")
    job.wait_for("node_created", replaces="node-0", within_s=WITHIN_S)
    with pytest.raises(JobError, match="is gone already"):
        inject("kill", master)


def test_a_memory_hog_takes_the_nodes_memory_and_not_the_machines(
    submit: Callable[..., Job], where: tuple[str, ...]
) -> None:
    job = submit("--nodes", "1", "--memory", "600Mi", *where)
    target = find(running(job, 1, 1), "node:node-0")
    assert target.memory_bytes == 600 << 20
    with inject("memory-hog", target):
        gone = job.wait_for("node_gone", node="node-0", within_s=WITHIN_S)
    assert gone["cause"] == "out_of_memory"


def test_a_job_is_struck_from_the_command_line(submit: Callable[..., Job]) -> None:
    job = submit("--nodes", "1", *SHARED)
    target = find(running(job, 1, 1), "rank:0")
    env = clean_env({"HOLDFAST_RUNTIME_DIR": os.environ["HOLDFAST_RUNTIME_DIR"]})

    def say(*words: str) -> subprocess.Popen[str]:
        command = [HOLDFAST, "chaos", "inject", *words]
        return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    holding = say("stop", "--target", "rank:0")
    assert holding.stdout is not None
    assert holding.stdout.readline() == f"SIGSTOP to rank 0 on node-0 (pid {target.pids[0]})\n"
    assert holding.stdout.readline() == "until Ctrl-C\n"
    assert is_stopped(target.pids[0])
    holding.send_signal(signal.SIGINT)
    try:
        out, err = holding.communicate(timeout=60)
    finally:
        holding.kill()
    assert (holding.returncode, out, err) == (0, "taken back: SIGCONT\n", "")
    assert not is_stopped(target.pids[0])

    out, _ = say("stop", "--target", "any", "--job", "j", "--for", "0.1").communicate(timeout=60)
    assert out.splitlines()[1:] == ["for 0.1 s", "taken back: SIGCONT"]
    mistakes = {
        ("stop", "--target", "rank:9"): "a rank that runs: 0",
        ("stop", "--target", "rank:0", "--job", "k"): "running: j-",
        ("stop", "--target", "rank:0", "--set", "x=1"): "parameter of stop: 'x' is not valid; it has none",
        ("kill", "--target", "rank:0", "--set", "signal=X"): "--set signal: 'X' is not valid; it must be the name",
        ("cpu-load", "--target", "rank:0", "--set", "percent=0"): "it must be a number from 1 to 100",
        ("memory-hog", "--target", "rank:0"): "node-0 has none; say how many",
        ("exception", "--target", "rank:0"): "does not use the SDK",
        ("exception", "--target", "node:node-0"): "must be one, as rank:1",
        ("quake", "--target", "rank:0"): "it must be one of kill, stop",
    }
    for words, valid in mistakes.items():
        failing = say(*words)
        assert valid in failing.communicate(timeout=60)[1]
        assert failing.returncode != 0
    assert is_alive(target.pids[0])


def test_the_list_tells_everything_about_each_fault_and_experiment() -> None:
    shown = subprocess.run(
        [HOLDFAST, "chaos", "list", "--json"], env=clean_env(), capture_output=True, text=True, timeout=60, check=True
    )
    listed = json.loads(shown.stdout)
    faults, experiments = ({each["name"]: each for each in listed[kind]} for kind in ("faults", "experiments"))
    assert all(fault["without_root"] for fault in faults.values() if fault["needs_root"])
    assert [name for name, fault in faults.items() if not fault["undo"]] == ["kill"]
    assert faults["disk-full"]["without_root"] in faults
    assert faults["slow-disk"]["parameters"]["bytes"]["default"] == "1Mi"
    table = subprocess.run(
        [HOLDFAST, "chaos", "list"], env=clean_env(), capture_output=True, text=True, timeout=60, check=True
    )
    titles = [
        line for line in table.stdout.splitlines() if line and not line.startswith((" ", "Faults", "Experiments"))
    ]
    assert titles == [*faults, *experiments]
    assert list(experiments) == names()
    assert experiments["network-breakdown"]["without_root"] == "silent-node"
    assert experiments["hang"]["says"] in " ".join(table.stdout.split())
    assert all(each["negative"] and (each["without_root"] or not each["needs_root"]) for each in experiments.values())
