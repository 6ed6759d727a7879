"""Submitted jobs of several roles: each trains by itself; what befalls one leaves the others alone, unless it fails."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import is_alive, kill, parent, until
from submitted import SHARED, WITHIN_S, Submitted

from holdfast.cli.main import main

SubmitFile = Callable[..., Submitted]
pytestmark = pytest.mark.timeout(240)

TRAIN = """
import os, signal, socket
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
names = ("NODE_TYPE", "ROLE_NAME", "NODE_ID", "GROUP_RANK", "RANK", "WORLD_SIZE", "HOLDFAST_GENERATION")
with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=10):
    os.write(1, f"here {' '.join(os.environ[name] for name in names)}\\n".encode())
if signal.sigwait({signal.SIGUSR1, signal.SIGUSR2}) == signal.SIGUSR2:
    raise SystemExit(7)
"""
TWO = """
roles:
  worker:
    nodes: {nodes}
    command: [SCRIPT]
    start_method: spawn
  evaluator:
    command: [SCRIPT]
    start_method: spawn
    env: {{WHO: evaluator}}
recover: {{max_restarts: {max_restarts}}}
timeouts: {{last_call: 1}}
"""


def here(it: Submitted, role: str, node: int, *, rank: int, size: int) -> None:
    line = f"[{role} node-{node}] here {role} {role} {node} {rank} {rank} {size} "
    it.job.wait_for_output(line, within_s=WITHIN_S)


def worker_pid(it: Submitted, node: str) -> int:
    (pid,) = it.node(node, phase="running")["worker_pids"]
    return int(pid)


def test_each_role_is_a_world_of_its_own_and_a_lost_node_is_a_matter_of_its_role(submit_file: SubmitFile):
    it = submit_file(TWO.format(nodes="1:2", max_restarts=3), "--slots", 3, *SHARED, source=TRAIN)
    here(it, "worker", 0, rank=0, size=2)
    here(it, "worker", 1, rank=1, size=2)
    here(it, "evaluator", 2, rank=0, size=1)
    evaluating = worker_pid(it, "node-2")
    _expect_the_commands_to_know_of_roles(it)

    recorded = str(it.job.events_file)
    struck = it.say("chaos", "inject", "kill", "--target", "role:worker/1", "--job", recorded)
    assert "SIGKILL to node-1" in struck.stdout, struck.stderr
    here(it, "worker", 3, rank=1, size=2)
    gone = it.job.wait_for("node_gone", node="node-1")
    assert (gone["cause"], gone["rank"], gone["role"]) == ("killed", 1, "worker")
    worlds = [(world["role"], world["generation"]) for world in it.job.events("world_formed")]
    assert worlds.count(("evaluator", 1)) == len([role for role, _ in worlds if role == "evaluator"]) == 1
    assert worker_pid(it, "node-2") == evaluating, "it did not notice"
    assert "worker: node node-3 replaces node-1 as rank 1" in it.job.err

    assert json.loads(it.say("scale", "worker", "1", "--json").stdout)["wanted_nodes"] == 1
    assert it.node("node-3", state="gone")["why_gone"] == "it was not wanted any more"
    kill(evaluating, signal.SIGUSR1)
    assert it.node("node-2", state="gone")["why_gone"] == "its role has ended"
    _expect_the_end_of_a_role_to_be_told(it)
    last = until(lambda: _world_of_one(it), within_s=WITHIN_S, what="a world of one worker", tell=it.job.story)
    it.job.wait_for_output(f"here worker worker 0 0 0 1 {last}\n", within_s=WITHIN_S)
    kill(worker_pid(it, "node-0"), signal.SIGUSR1)
    assert it.job.wait(within_s=WITHIN_S) == 0, it.job.story()
    it.expect_nothing_left()


def _world_of_one(it: Submitted) -> int | None:
    """The generation of the workers' newest world, if it is one of a single node."""
    newest = [world for world in it.job.events("world_formed") if world["role"] == "worker"][-1]
    return newest["generation"] if newest["world_size"] == 1 else None


def _expect_the_commands_to_know_of_roles(it: Submitted) -> None:
    told = json.loads(it.say("status", "--json").stdout)
    assert [(role["role"], role["running_nodes"], role["exit_code"]) for role in told["roles"]] == [
        ("worker", 2, None),
        ("evaluator", 1, None),
    ]
    runs = {role["master"]["job_id"] for role in told["roles"]}
    assert runs == {f"{told['job_id']}-worker", f"{told['job_id']}-evaluator"}, "each has a master of its own"
    shown = it.say("status").stdout
    assert "room         for 3 nodes\n" in shown
    assert "\nrole         evaluator\nphase        running\n" in shown
    table = [line.split()[:4] for line in it.say("nodes").stdout.splitlines()]
    assert table == [
        ["NAME", "ROLE", "RANK", "STATE"],
        ["node-0", "worker", "0", "running"],
        ["node-1", "worker", "1", "running"],
        ["node-2", "evaluator", "0", "running"],
    ]
    lines = [json.loads(line) for line in it.say("logs", "evaluator/0", "--json").stdout.splitlines()]
    assert {(line["node"], line["role"]) for line in lines} == {("node-2", "evaluator")}
    mistakes = {
        ("scale", "ps", "1"): "ROLE: 'ps' is not valid; it must be one of worker, evaluator",
        ("scale", "evaluator", "2"): "from 1 to 1",
        ("chaos", "inject", "kill", "--target", "rank:0"): "it must be role:ROLE/INDEX, node:NAME or agent:NAME",
        ("chaos", "inject", "kill", "--target", "role:ps/0"): "role:worker/0, role:worker/1, role:evaluator/0",
        ("logs", "ps/0"): "it must be one of node-0, node-1, node-2, worker/0, worker/1, evaluator/0",
    }
    for words, valid in mistakes.items():
        answer = it.say(*words)
        assert answer.returncode != 0
        assert valid in answer.stderr


def _expect_the_end_of_a_role_to_be_told(it: Submitted) -> None:
    def look() -> bool:
        return "\nrole         evaluator\nphase        ended with exit code 0\n" in it.say("status").stdout

    until(look, within_s=WITHIN_S, what="the end of the evaluator", tell=it.job.story)
    assert "it has ended; running: worker" in it.say("scale", "evaluator", "1").stderr


def test_a_role_that_fails_ends_the_job_with_its_code_and_name(submit_file: SubmitFile):
    it = submit_file(TWO.format(nodes=1, max_restarts=0), source=TRAIN)
    here(it, "worker", 0, rank=0, size=1)
    here(it, "evaluator", 1, rank=0, size=1)
    training = worker_pid(it, "node-0")
    kill(worker_pid(it, "node-1"), signal.SIGUSR2)
    assert it.job.wait(within_s=WITHIN_S) == 7, it.job.story()
    assert "job failed: role evaluator: " in it.job.err
    assert "root cause: rank 0 on node-1" in it.job.err
    assert not is_alive(training)
    gone = it.job.wait_for("node_gone", node="node-0")
    assert (gone["role"], gone["exit_code"], gone["signal"]) == ("worker", 128 + signal.SIGINT, None), "in order"
    it.expect_nothing_left()


def test_nothing_is_left_of_any_role_when_the_submitter_is_killed(submit_file: SubmitFile):
    it = submit_file(TWO.format(nodes=1, max_restarts=0), source=TRAIN)
    here(it, "worker", 0, rank=0, size=1)
    here(it, "evaluator", 1, rank=0, size=1)
    pids = [node["pid"] for node in it.nodes().values()]
    kill(parent(pids[0]))
    it.expect_nothing_left()
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


def test_incidents_are_told_by_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    opened = {"kind": "incident_opened", "number": 1, "at": "now", "generation": 1, "strategy": "retry", "reason": "r"}
    closed = {"kind": "incident_closed", "number": 1, "verdict": "repaired", "total_ms": 5.0, "timings_ms": {}}
    entries = [
        {**opened, "symptom": "worker's", "role": "worker"},
        {**opened, "symptom": "evaluator's", "role": "evaluator"},
        {**closed, "role": "evaluator"},
    ]
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert main(["incidents", str(file), "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["role"], each["fault"], each["verdict"]) for each in told] == [
        ("worker", "worker's", "open"),
        ("evaluator", "evaluator's", "repaired"),
    ]
    assert main(["incidents", str(file)]) == 0
    assert "incident 1 of evaluator  now" in capsys.readouterr().out
