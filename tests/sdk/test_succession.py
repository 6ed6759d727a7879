"""The node that hosts the master is lost or cut off: another one hosts it, and the job goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Job, StartJob, free_port, kill, until
from test_recover import SCRIPT, destroy, finals, own_workers

from holdfast.agent.asking import ask

Start = Callable[..., Job]

SLOW = [f"{step}:0:pause" for step in range(20, 90)]
LEASE = ("--rdzv-conf", "keep_alive_interval=0.5,keep_alive_max_attempt=8,join_timeout=60")
ENV = {"OMP_NUM_THREADS": "1", "PAUSE_S": "0.5"}


@pytest.fixture
def endpoint() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def node(run_job: StartJob, tmp_path: Path, endpoint: str) -> Start:
    """Start a node with one worker, of a job of two nodes."""
    marks = tmp_path / "marks"
    marks.mkdir()

    def begin(*flags: str, nodes: str = "2") -> Job:
        meeting = ("--nnodes", nodes, "--rdzv-endpoint", endpoint, "--rdzv-id", "j", *LEASE)
        return run_job(*meeting, *flags, SCRIPT, marks, *SLOW, env=ENV)

    return begin


@pytest.fixture
def undisturbed(run_job: StartJob, tmp_path: Path) -> str:
    (tmp_path / "calm").mkdir()
    job = run_job("--nproc-per-node", 2, SCRIPT, tmp_path / "calm", env=ENV)
    assert job.wait(within_s=150) == 0, job.story()
    return finals(job)[0][1]


def come_to_step(step: int, marks: Path, job: Job) -> None:
    until((marks / str(step - 20)).exists, within_s=60, what=f"step {step}", tell=job.story)


def nodes_of(job: Job) -> list[str]:
    """The nodes that this one has seen joining."""
    return [event["node"] for event in job.events("node_joined")]


@pytest.mark.timeout(400)
def test_a_lost_master_is_succeeded_and_so_is_its_successor(
    node: Start, endpoint: str, undisturbed: str, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    first = node()
    first.wait_for("node_joined", within_s=60)
    second = node()
    first.wait_for("world_formed", within_s=60)
    third = node()
    until(lambda: len(nodes_of(first)) == 3, within_s=60, what="the spare joins", tell=first.story)
    come_to_step(25, marks, first)
    survivor = own_workers(second, second)
    destroy(first)
    moved = second.wait_for("master_moved", within_s=60)
    assert [moved["lost"], moved["node"]] == nodes_of(first)[:2]
    assert moved["term"] == 1
    second.wait_for("incident_closed", within_s=60, verdict="repaired")
    assert own_workers(second, second) == survivor, "it kept its process"

    # A node that is started at the old address is told where the master is now, and tells others.
    again = node()
    until(lambda: len(set(nodes_of(second))) == 3, within_s=60, what="the first node is back", tell=again.story)
    told = ask(endpoint, "/api/story")
    assert moved["text"] in [entry["text"] for entry in told], "so are those who only ask"
    kill(again.wait_for_process("master"))
    sent_on = node()
    until(lambda: len(set(nodes_of(second))) == 4, within_s=60, what="another node comes", tell=sent_on.story)
    come_to_step(60, marks, second)
    survivor = own_workers(second, third)
    destroy(second)
    assert third.wait_for("master_moved", within_s=60, term=2)["lost"] == moved["node"]
    assert third.wait(within_s=150) == 0, third.story()
    assert [again.wait(within_s=60), sent_on.wait(within_s=60)] == [0, 0], again.story()
    ends = finals(third, again, sent_on)
    assert {digest for _, digest in ends.values()} == {undisturbed}
    assert {rank: pid for rank, (pid, _) in ends.items() if rank in survivor} == survivor
    generations = [event["generation"] for event in third.events("incident_opened")]
    assert generations == sorted(set(generations))


@pytest.mark.timeout(400)
def test_a_silent_master_is_succeeded_by_most_nodes_and_comes_back(node: Start, tmp_path: Path) -> None:
    marks, elastic = tmp_path / "marks", ("--recover-strategy", "elastic-training")
    nodes = [node(*elastic, nodes="2:3")]
    nodes[0].wait_for("node_joined", within_s=60)
    nodes += [node(*elastic, nodes="2:3") for _ in range(2)]
    host, *others = nodes
    host.wait_for("world_formed", within_s=60)
    come_to_step(25, marks, host)
    stopped = [pid for pid in host.processes() if kill(pid, signal.SIGSTOP)]
    moved = others[0].wait_for("master_moved", within_s=60)
    assert len(moved["voters"]) == 2
    assert "silent for" in moved["evidence"]
    others[0].wait_for("incident_closed", within_s=60, verdict="repaired")
    for pid in stopped:
        kill(pid, signal.SIGCONT)
    others[0].wait_for("incident_opened", within_s=60, symptom=f"{nodes_of(host)[0]} joined")
    until(lambda: len(others[0].events("incident_closed")) == 2, within_s=60, what="three nodes", tell=host.story)

    # Only the process of the master is stuck: its node has it started again, and is not given up.
    agent = next(event["pid"] for event in host.events("node_joined") if event["node"] == moved["node"])
    heir = next(job for job in others if job.find("agent") == agent)
    kill(heir.wait_for_process("master"), signal.SIGSTOP)
    heir.wait_for_output("the master does not answer; it is started again", within_s=60)
    assert [job.wait(within_s=150) for job in nodes] == [0, 0, 0], host.story()
    ends = finals(*nodes)
    assert len(ends) == 3
    assert len({digest for _, digest in ends.values()}) == 1
    assert moved["node"] not in [event["node"] for event in others[0].events("node_lost")], host.story()
