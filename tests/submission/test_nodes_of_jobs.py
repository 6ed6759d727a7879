"""Submitted jobs: nodes are lost and replaced, wait for room, are scaled, and go with their job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import is_alive, kill, parent, until
from submitted import SHARED, WAIT, WITHIN_S, Submitted

from holdfast.platforms.local.namespaces import configure

Submit = Callable[..., Submitted]
MIB = 1 << 20

pytestmark = pytest.mark.timeout(240)


def test_a_node_that_is_killed_is_replaced_and_its_rank_inherited(submit: Submit, where: tuple[str, ...]):
    it = submit("--nodes", 2, *where)
    it.here(0, rank=0, size=2)
    it.here(1, rank=1, size=2)
    lost = it.node("node-1", phase="running")
    kill(lost["agent_pid"])
    it.here(2, rank=1, size=2)
    gone = it.job.wait_for("node_gone", node="node-1")
    assert (gone["cause"], gone["rank"]) == ("killed", 1)
    assert it.job.wait_for("node_created", node="node-2")["replaces"] == "node-1"
    assert it.finish() == 0, it.job.story()
    assert "node node-2 replaces node-1 as rank 1" in it.job.err
    assert not any(map(is_alive, lost["worker_pids"]))
    it.expect_nothing_left()


def test_the_first_node_is_replaced_like_any_other_and_its_host_avoided_if_that_failed(submit: Submit):
    it = submit("--nodes", "1:2", "--quarantine", 1, "--relaunch-backoff", "0.1:1", *SHARED)
    it.here(0, rank=0, size=2)
    it.here(1, rank=1, size=2)
    kill(it.node("node-0", phase="running")["pid"], signal.SIGABRT)
    it.here(2, rank=0, size=2)
    assert it.job.wait_for("host_quarantined")["host"] == "host-0"
    assert it.nodes()["node-2"]["host"] == "host-2"
    assert it.finish() == 0, it.job.story()


def test_a_node_without_room_stays_pending_until_there_is(submit: Submit):
    it = submit("--nodes", "1:2", "--slots", 1, "--last-call-timeout", 0.2, *SHARED)
    it.here(0, rank=0, size=1)
    assert it.node("node-1")["state"] == "pending"
    assert it.say("scale", "--slots", "2").returncode == 0
    it.here(1, rank=1, size=2)
    it.here(0, rank=0, size=2)
    assert it.finish() == 0, it.job.story()


def test_a_job_is_scaled_asked_and_stopped_from_outside(submit: Submit):
    it = submit("--nodes", "1:2", "--memory", "2Gi")
    it.here(1, rank=1, size=2)
    status = json.loads(it.say("status", "--json").stdout)
    assert (status["running_nodes"], status["wanted_nodes"], status["master"]["phase"]) == (2, 2, "running")
    assert "2 running" in it.say("status", "--job", "j").stdout
    table = it.say("nodes").stdout.splitlines()
    assert table[0].split()[:3] == ["NAME", "RANK", "STATE"]
    assert table[1].split()[:4] == ["node-0", "0", "running", "host-0"]
    node = it.nodes()["node-0"]
    assert parent(node["agent_pid"]) == node["pid"]
    assert os.path.isdir(node["directory"])
    assert all(map(is_alive, node["worker_pids"]))
    assert "here 0 0 2 " in it.say("logs", "node-0").stdout
    lines = [json.loads(line) for line in it.say("logs", "node-0", "--json").stdout.splitlines()]
    assert [line["node"] for line in lines if line["line"].startswith("here 0 0 2 ")] == ["node-0"]

    following = it.begin("logs", "node-1", "--follow")
    answer = it.say("scale", "worker", "1", "--json")
    assert json.loads(answer.stdout)["wanted_nodes"] == 1
    it.wait_for_world(1)
    assert it.node("node-1", state="gone")["why_gone"] == "it was not wanted any more"
    followed, _ = following.communicate(timeout=WITHIN_S)
    assert "here 1 1 2 " in followed, "it ends with its node"
    assert it.say("scale", "worker", "2").stdout == "2 nodes are wanted\n"
    it.here(2, rank=1, size=2)
    mistakes = {("worker", "3"): "from 1 to 2", ("ps", "1"): "must be worker", ("worker", "x"): "whole number"}
    for words, valid in mistakes.items():
        answer = it.say("scale", *words)
        assert answer.returncode != 0
        assert valid in answer.stderr
    assert "must be one of node-0" in it.say("logs", "node-9").stderr

    assert "is stopping" in it.say("stop").stdout
    assert it.job.wait(within_s=WITHIN_S) == 128 + signal.SIGTERM, it.job.story()
    it.expect_nothing_left()
    assert it.say("status").stderr == "holdfast: no job is running\n"


HOG = (
    """
import os
held = []
while os.environ["NODE_ID"] == "0":
    held.append(b"x" * (8 << 20))
"""
    + WAIT
)


def test_a_node_that_was_out_of_memory_is_replaced_by_a_larger_one(submit: Submit, where: tuple[str, ...]):
    it = submit("--nodes", 1, "--memory", "400Mi", "--max-restarts", 100, *where, source=HOG)
    gone = it.job.wait_for("node_gone", node="node-0", within_s=WITHIN_S)
    assert gone["cause"] == "out_of_memory"
    assert it.node("node-1", phase="running")["memory_bytes"] == 800 * MIB
    it.here(1, rank=0, size=1)
    assert it.say("stop").returncode == 0
    it.job.wait(within_s=WITHIN_S)
    it.expect_nothing_left()


def test_a_node_that_is_cut_off_is_replaced(submit: Submit, apart: tuple[str, ...]):
    it = submit("--nodes", 2, "--beat-interval", 0.2, *apart)
    it.here(1, rank=1, size=2)
    lost = it.node("node-1", phase="running")
    configure(lost["pid"], ["link set eth0 down"])
    gone = it.job.wait_for("node_gone", node="node-1", within_s=WITHIN_S)
    assert gone["cause"] == "hardware"
    assert "silent" in gone["evidence"]
    it.here(2, rank=1, size=2)
    assert it.finish() == 0, it.job.story()
    it.expect_nothing_left()


def test_a_preempted_node_leaves_in_order_and_is_replaced_without_a_restart(submit: Submit):
    it = submit("--nodes", "1:2", "--max-restarts", 0, *SHARED)
    it.here(1, rank=1, size=2)
    kill(it.node("node-1", phase="running")["pid"], signal.SIGTERM)
    assert it.job.wait_for("node_gone", node="node-1")["cause"] == "killed"
    it.here(2, rank=1, size=2)
    assert it.finish() == 0, it.job.story()


def test_a_hang_up_without_budget_makes_the_job_smaller(submit: Submit):
    it = submit("--nodes", "1:2", "--relaunch-killed", 0, *SHARED)
    it.here(1, rank=1, size=2)
    kill(it.node("node-1", phase="running")["pid"], signal.SIGHUP)
    it.wait_for_world(1)
    assert "is not replaced" in it.job.wait_for("place_given_up")["text"]
    assert it.finish() == 0, it.job.story()


def test_a_job_that_can_never_have_enough_nodes_again_ends_with_the_reason(submit: Submit):
    it = submit("--nodes", 2, "--relaunch-killed", 0, *SHARED)
    it.here(1, rank=1, size=2)
    kill(it.node("node-1", phase="running")["pid"])
    assert it.job.wait(within_s=WITHIN_S) == 1
    assert "the job is given up: 1 nodes are left of at least 2" in it.job.err
    it.expect_nothing_left()


def test_a_failure_of_the_script_ends_the_job_as_holdfast_run_would(submit: Submit):
    fails = "import os, sys\nsys.exit(int(os.environ['RANK']) * 7)"
    it = submit("--nodes", 2, "--max-restarts", 0, *SHARED, source=fails)
    assert it.job.wait(within_s=WITHIN_S) == 7, it.job.story()
    assert "root cause: rank 1 on node-1" in it.job.err
    assert len(it.job.events("node_created")) == 2, "nobody is replaced for it"
    it.expect_nothing_left()


@pytest.mark.parametrize("victims", [("guard",), ("submitter",), ("guard", "submitter")])
def test_whoever_of_the_submitter_is_killed_nothing_is_left(submit: Submit, victims: tuple[str, ...]):
    before = set(os.listdir("/sys/class/net"))
    it = submit("--nodes", 1)
    it.here(0, rank=0, size=1)
    node = it.nodes()["node-0"]
    pids = {"guard": it.job.pid, "submitter": parent(node["pid"])}
    for victim in victims:
        kill(pids[victim])
    it.job.expect_nothing_left(within_s=30)
    groups = [Path(path).parent for path in node["cgroups"].values()]
    until(lambda: not any(group.exists() for group in groups), within_s=30, what="the control groups to go")
    assert set(os.listdir("/sys/class/net")) == before
    if len(victims) == 1:
        it.expect_nothing_left()
    assert it.say("nodes").stderr == "holdfast: no job is running\n"


def test_the_master_may_die(submit: Submit):
    it = submit("--nodes", 2, *SHARED)
    it.here(1, rank=1, size=2)
    submitter = parent(it.nodes()["node-0"]["pid"])
    master = next(pid for pid in it.job.processes() if parent(pid) == submitter and _is_master(pid))
    kill(master)
    it.job.wait_for("master_restored")
    assert it.nodes()["node-0"]["phase"] == "running"
    assert it.finish() == 0, it.job.story()


def _is_master(pid: int) -> bool:
    return b"holdfast.master.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
