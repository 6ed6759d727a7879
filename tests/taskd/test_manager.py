"""A TaskD manager and real nodes: it runs their master, or looks on at one that they have already."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from certs import PASSWORDS, Files
from jobs import BIN, HOLDFAST, PYTHON, StartJob, free_port, kill
from managers import REPAIRABLE, SCRIPTS, STARTED_S, Begin

MANAGER_PY = """\
from holdfast.taskd import init_taskd_manager, start_taskd_manager
import os

job_id=os.getenv("MINDX_TASK_ID")
node_nums=2         # Total number of nodes (set by yourself)
proc_per_node=2     # Number of training processes on each node (set by yourself)

init_taskd_manager({"job_id":job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
"""
QUICK = ("--start-method", "spawn")
WAIT = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("here", flush=True)
signal.sigwait({signal.SIGUSR1})
"""

Script = Callable[..., Path]

pytestmark = pytest.mark.timeout(300)


def config(port: int, *, nodes: int = 1, workers: int = 1, job_id: str = "j") -> dict[str, object]:
    where = {"ip": "127.0.0.1", "port": str(port), "name": "taskd", "role": "manager"}
    return {"job_id": job_id, "node_nums": nodes, "proc_per_node": workers, "cluster_infos": [where]}


def test_the_files_of_a_mindcluster_job_run_with_another_import(begin: Begin, pod_ip: str, tmp_path: Path):
    (tmp_path / "manager.py").write_text(MANAGER_PY)
    marks = tmp_path / "marks"
    marks.mkdir()
    env = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PET_RDZV_BACKEND": "holdfast",
        "MINDX_TASK_ID": "task",
        "POD_IP": pod_ip,
        "MASTER_ADDR": pod_ip,
        "MASTER_PORT": str(free_port()),
        "GPUS_PER_NODE": "2",
        "NNODES": "2",
    }
    command = f"cd {tmp_path} && . {SCRIPTS / 'train_start.sh'}"
    nodes = [
        begin(
            "bash", "-c", command, "bash", REPAIRABLE, marks, "30:1:kill", env=env | {"RANK": rank, "NODE_RANK": rank}
        )
        for rank in ("0", "1")
    ]
    for node in nodes:
        assert node.wait(within_s=2 * STARTED_S) == 0, node.story()
        assert "incident 1 repaired" in node.err
    found = re.findall(r"rank (\d) pid \d+ weights (\w+)", nodes[0].out + nodes[1].out)
    assert sorted(rank for rank, _ in found) == ["0", "1", "2", "3"]
    assert len({weights for _, weights in found}) == 1


def test_a_job_of_one_node_has_a_manager_too(manager: Begin, begin: Begin, script: Script):
    port = free_port()
    env = {"TASKD_PROCESS_ENABLE": "on", "MINDX_TASK_ID": "j"}
    # The node is there first: it waits, and does not serve itself.
    node = begin(HOLDFAST, "run", *QUICK, "--rdzv-endpoint", f"127.0.0.1:{port}", script("print('done')"), env=env)
    node.wait_for_output(f"no master at 127.0.0.1:{port} yet", within_s=STARTED_S)
    job = manager(config(port), env)
    assert node.wait(within_s=STARTED_S) == 0, node.story()
    assert job.wait(within_s=STARTED_S) == 0, job.story()
    assert job.out == "init True\nstart True\n", job.story()


def test_a_job_goes_on_without_its_manager_and_a_new_one_looks_on(manager: Begin, run_job: StartJob, script: Script):
    port = free_port()
    env = {"TASKD_PROCESS_ENABLE": "on", "MINDX_TASK_ID": "j"}
    job = manager(config(port), env)
    node = run_job(*QUICK, "--rdzv-endpoint", f"127.0.0.1:{port}", script(WAIT), env=env)
    node.wait_for_output("here", within_s=STARTED_S)
    kill(job.pid)
    node.wait_for("master_moved", within_s=STARTED_S)
    again = manager(config(port), env)
    again.wait_for_output("this manager waits until it ends", within_s=STARTED_S)
    for pid in node.wait_for_workers().values():
        kill(pid, signal.SIGUSR1)
    assert node.wait(within_s=STARTED_S) == 0, node.story()
    assert node.out == "here\n", "its worker was not started again"
    assert again.wait(within_s=STARTED_S) == 0, again.story()
    assert again.out == "init True\nstart True\n", again.story()


def test_a_manager_and_its_onlooker_use_the_secure_channel(
    manager: Begin, run_job: StartJob, script: Script, tmp_path: Path
):
    port = free_port()
    secret = PASSWORDS | {"HOLDFAST_TLS_CONFIG": str(Files(tmp_path / "tls").config), "HOLDFAST_TOKEN": "sesame"}
    node_env = secret | {"TASKD_PROCESS_ENABLE": "on", "MINDX_TASK_ID": "j"}
    job = manager(config(port), secret)
    node = run_job(*QUICK, "--rdzv-endpoint", f"127.0.0.1:{port}", script(WAIT), env=node_env)
    node.wait_for_output("here", within_s=STARTED_S)
    onlookers = {
        "all": manager(config(port), secret),
        "no token": manager(config(port), {**secret, "HOLDFAST_TOKEN": ""}),
    }
    assert onlookers["no token"].wait(within_s=STARTED_S) == 0
    assert "a token is needed" in onlookers["no token"].err
    onlookers["all"].wait_for_output("this manager waits until it ends", within_s=STARTED_S)
    for pid in node.wait_for_workers().values():
        kill(pid, signal.SIGUSR1)
    assert node.wait(within_s=STARTED_S) == 0, node.story()
    for each in (job, onlookers["all"]):
        assert each.wait(within_s=STARTED_S) == 0
        assert each.out == "init True\nstart True\n", each.story()


def test_a_job_that_fails_is_false_with_its_root_cause(manager: Begin, run_job: StartJob, script: Script):
    port = free_port()
    job = manager({**config(port), "taskd_enable": "off"}, {"PET_MAX_RESTARTS": "0"})
    env = {"TASKD_PROCESS_ENABLE": "on", "MINDX_TASK_ID": "j"}
    path = script("raise ValueError('label 10')")
    node = run_job(*QUICK, "--rdzv-endpoint", f"127.0.0.1:{port}", path, env=env)
    assert node.wait(within_s=STARTED_S) == 1
    assert job.wait(within_s=STARTED_S) == 0
    assert job.out == "init True\nstart False\n", job.story()
    assert "start_taskd_manager: job failed" in job.err


def test_a_node_with_another_number_of_workers_is_refused(manager: Begin, run_job: StartJob, script: Script):
    port = free_port()
    job = manager(config(port, nodes=2, workers=3))
    endpoint = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "j")
    env = {"TASKD_PROCESS_ENABLE": "on"}
    node = run_job(*QUICK, *endpoint, "--nproc-per-node", 2, script(WAIT), env=env)
    assert node.wait(within_s=STARTED_S) == 1
    assert "this job has 3 workers on each node (proc_per_node), this node 2 (--nproc-per-node)" in node.err
    assert job.process.poll() is None


def test_a_manager_looks_on_where_a_node_has_the_master(manager: Begin, run_job: StartJob, script: Script):
    port = free_port()
    node = run_job(*QUICK, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "j", script(WAIT))
    node.wait_for_output("here", within_s=STARTED_S)
    stranger = manager(config(port, job_id="other"))
    assert stranger.wait(within_s=STARTED_S) == 0
    assert stranger.out == "init True\nstart False\n", stranger.story()
    assert f"the master at 127.0.0.1:{port} serves job 'j', not 'other'" in stranger.err
    job = manager(config(port))
    job.wait_for_output("this manager waits until it ends", within_s=STARTED_S)
    # Its master may be killed meanwhile: its node starts it again.
    kill(node.wait_for_process("master"))
    node.wait_for("master_restored", within_s=STARTED_S)
    for pid in node.wait_for_workers().values():
        kill(pid, signal.SIGUSR1)
    assert node.wait(within_s=STARTED_S) == 0, node.story()
    assert job.wait(within_s=STARTED_S) == 0
    assert job.out == "init True\nstart True\n", job.story()


def test_an_agent_serves_the_workers_of_another_launcher(manager: Begin, begin: Begin):
    port = free_port()
    job = manager(config(port, workers=2))
    launcher = begin(PYTHON, SCRIPTS / "launcher.py", port)
    assert launcher.wait(within_s=STARTED_S) == 0, launcher.story()
    assert launcher.out == "start 1\nstart 2\nanswers [True, True, True, True, True]\n", launcher.story()
    assert job.wait(within_s=STARTED_S) == 0
    assert job.out == "init True\nstart True\n", job.story()
