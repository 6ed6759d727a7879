"""Jobs over TLS: real nodes that meet, train, lose their master, and turn others away."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certs import CLIENT_PASSWORD, PASSWORDS, SERVER_PASSWORD, Authority, Files
from jobs import HOLDFAST, PYTHON, Job, StartJob, clean_env, cmdline, free_port, kill, until

QUICK = ("--start-method", "spawn")
AT_ONCE = ("--rdzv-conf", "last_call_timeout=0.2,join_timeout=20")
WAIT = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready", os.environ["RANK"], os.environ["WORLD_SIZE"], flush=True)
signal.sigwait({signal.SIGUSR1})
"""
TRAIN = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4) * (dist.get_rank() + 1)).square().mean()
    loss.backward()
    optimizer.step()
variables = sorted(name for name in os.environ if "HOLDFAST_TLS" in name)
os.write(1, f"trained {dist.get_rank()} {loss.item():.3f} {variables}\\n".encode())
dist.destroy_process_group()
"""

Script = Callable[..., Path]

pytestmark = pytest.mark.timeout(180)


class Nodes:
    """Starts the nodes of one job, each with files of its own, or with none."""

    def __init__(self, run_job: StartJob) -> None:
        self.port = free_port()
        self.jobs: list[Job] = []
        self._run_job = run_job

    def start(self, files: Files | None, *args: object, nnodes: str = "1:2", env: dict[str, str] | None = None) -> Job:
        tls = [] if files is None else ["--tls-config", files.config]
        flags = ["--nnodes", nnodes, "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "j", *AT_ONCE]
        job = self._run_job(*flags, *tls, *args, env=PASSWORDS if env is None else env)
        self.jobs.append(job)
        return job

    def open(self, path: str, context: ssl.SSLContext | None = None) -> Any:
        return urllib.request.urlopen(f"https://127.0.0.1:{self.port}{path}", timeout=10, context=context)


@pytest.fixture
def nodes(run_job: StartJob) -> Nodes:
    return Nodes(run_job)


def end(job: Job, generation: int = 1) -> None:
    """The job has not been disturbed by whatever happened meanwhile."""
    for pid in job.wait_for_workers(generation).values():
        kill(pid, signal.SIGUSR1)
    assert job.wait() == 0, job.story()


def expect_refusal(job: Job, *words: str) -> None:
    assert job.wait(within_s=30) == 1, job.story()
    assert job.out == ""
    assert "Traceback" not in job.err
    for word in words:
        assert word in job.err.splitlines()[-1], job.err


def expect_no_secret(*jobs: Job) -> None:
    for job in jobs:
        said = job.out + job.err + job.events_file.read_text()
        said += " ".join(" ".join(cmdline(pid)) for pid in job.processes())
        for secret in (SERVER_PASSWORD, CLIENT_PASSWORD):
            assert secret not in said


def test_without_tls_nothing_of_it_is_loaded():
    code = (
        "import holdfast.cli.main, holdfast.agent.main, holdfast.master.main, sys; print('cryptography' in sys.modules)"
    )
    done = subprocess.run([PYTHON, "-c", code], env=clean_env(), capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("command", ["run", "cert", "incidents"])
def test_help_shows_no_password(command: str):
    arguments = [HOLDFAST, command, "--help"]
    done = subprocess.run(arguments, env=clean_env(PASSWORDS), capture_output=True, text=True, check=True)
    assert SERVER_PASSWORD not in done.stdout
    assert CLIENT_PASSWORD not in done.stdout


def test_two_nodes_train_to_the_end(nodes: Nodes, tls: Files, script: Script, tmp_path: Path):
    path = script(TRAIN)
    logs = ("--log-dir", tmp_path / "logs")
    jobs = [nodes.start(tls, *logs, "--node-rank", rank, path, nnodes="2") for rank in (0, 1)]
    for job in jobs:
        job.wait_for("workers_started")
    for name in filter(str.isdecimal, os.listdir("/proc")):
        shown = " ".join(cmdline(int(name)))
        assert SERVER_PASSWORD not in shown
        assert CLIENT_PASSWORD not in shown
    expect_no_secret(*jobs)
    assert [job.wait() for job in jobs] == [0, 0], jobs[0].story()
    for rank, job in enumerate(jobs):
        assert f"trained {rank} 0." in job.out
        assert "['HOLDFAST_TLS_CONFIG']" in job.out, "workers get no passwords"
    expect_no_secret(*jobs)
    for file in (tmp_path / "logs").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert SERVER_PASSWORD.encode() not in content
            assert CLIENT_PASSWORD.encode() not in content


def test_by_variables_and_with_password_files(nodes: Nodes, tls: Files, script: Script):
    (tls.directory / "here").write_text(SERVER_PASSWORD + "\n")
    (tls.directory / "client.password").write_text(CLIENT_PASSWORD)
    env = {"HOLDFAST_TLS_CONFIG": tls.config, "HOLDFAST_TLS_SERVER_PASSWORD_FILE": str(tls.directory / "here")}
    job = nodes.start(None, *QUICK, script(WAIT), nnodes="1", env=env)
    job.wait_for_output("ready")
    with nodes.open("/healthz", tls.client()) as answer:
        assert json.load(answer)["ok"] is True
    end(job)


def test_the_node_without_the_master_needs_nothing_of_the_server(
    nodes: Nodes, tls: Files, script: Script, tmp_path: Path
):
    host = nodes.start(tls, *QUICK, script(WAIT), nnodes="2")
    host.wait_for("node_joined")
    other = Files(tmp_path / "other", tls.authority)
    (other.directory / "server.p12").unlink()
    job = nodes.start(other, *QUICK, script(WAIT), nnodes="2", env={"HOLDFAST_TLS_CLIENT_PASSWORD": CLIENT_PASSWORD})
    for each in (host, job):
        each.wait_for_output("ready")
    for pids in [entry["pids"] for entry in host.events("workers_started")]:
        for pid in pids.values():
            kill(pid, signal.SIGUSR1)
    assert [host.wait(), job.wait()] == [0, 0]


def test_people_need_a_certificate_too(nodes: Nodes, tls: Files, script: Script):
    job = nodes.start(tls, *QUICK, script(WAIT), nnodes="1")
    job.wait_for_output("ready")
    with nodes.open("/api/job", tls.client()) as answer:
        assert json.load(answer)["phase"] == "running"
    stranger = ssl.create_default_context(cafile=str(tls.directory / "ca.crt"))
    stranger.check_hostname = False
    with pytest.raises((urllib.error.URLError, ssl.SSLError)) as refused:
        nodes.open("/healthz", stranger)
    assert "certificate required" in str(refused.value)
    command = [HOLDFAST, "incidents", f"127.0.0.1:{nodes.port}"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": 20}
    shown = subprocess.run([*command, "--tls-config", tls.config], env=clean_env(PASSWORDS), **options)
    assert (shown.stdout, shown.stderr, shown.returncode) == ("no incidents\n", "", 0)
    plain = subprocess.run(command, env=clean_env(), **options)
    assert (plain.stdout, plain.returncode) == ("", 1)
    assert "speaks TLS only: --tls-config or HOLDFAST_TLS_CONFIG is needed here too" in plain.stderr
    end(job)


def test_a_master_that_dies_comes_back_with_the_channel(nodes: Nodes, tls: Files, script: Script):
    job = nodes.start(tls, *QUICK, script(WAIT), nnodes="1")
    job.wait_for_output("ready")
    for file in tls.directory.iterdir():
        file.unlink()
    old = job.wait_for_process("master")
    kill(old)
    until(lambda: job.find("master") not in (None, old), within_s=30, what="another master", tell=job.story)
    job.wait_for("master_restored")
    end(job)
    assert len(job.events("workers_started")) == 1


# --- who is turned away, while the job goes on ----------------------------------------------------------------


def test_a_plain_node_at_a_master_with_tls(nodes: Nodes, tls: Files, script: Script):
    host = nodes.start(tls, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    expect_refusal(nodes.start(None, *QUICK, script(WAIT)), "speaks TLS only", "--tls-config", str(nodes.port))
    host.wait_for_output("refused a connection: it does not speak TLS")
    end(host)


def test_a_node_with_tls_at_a_plain_master(nodes: Nodes, tls: Files, script: Script):
    host = nodes.start(None, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    expect_refusal(nodes.start(tls, *QUICK, script(WAIT)), "does not speak TLS", "--tls-config", str(nodes.port))
    command = [HOLDFAST, "incidents", f"127.0.0.1:{nodes.port}", "--tls-config", tls.config]
    shown = subprocess.run(command, env=clean_env(PASSWORDS), capture_output=True, text=True, check=False, timeout=20)
    assert (shown.stdout, shown.returncode) == ("", 1)
    assert "no secure channel" in shown.stderr
    assert "it does not speak TLS" in shown.stderr
    end(host)
    assert "Traceback" not in host.err


def test_a_node_that_believes_another_authority(nodes: Nodes, tls: Files, script: Script, tmp_path: Path):
    host = nodes.start(tls, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    stranger = nodes.start(Files(tmp_path / "other"), *QUICK, script(WAIT))
    expect_refusal(stranger, "no secure channel", "not from the authority in ca_cert_path")
    end(host)


def test_a_node_whose_certificate_is_revoked(nodes: Nodes, tls: Files, script: Script, tmp_path: Path):
    thief = Files(tmp_path / "thief", tls.authority)
    tls.revoke(thief.client_serial)
    host = nodes.start(tls, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    expect_refusal(nodes.start(thief, *QUICK, script(WAIT)), "refused this node", "client_cert_path", "is revoked")
    with pytest.raises(urllib.error.HTTPError) as refused:
        nodes.open("/api/job", thief.client())
    assert refused.value.code == 403
    refused.value.close()
    host.wait_for_output("refused 127.0.0.1: its certificate is revoked")
    end(host)


def test_a_master_whose_certificate_is_revoked(nodes: Nodes, tls: Files, script: Script, tmp_path: Path):
    informed = Files(tmp_path / "informed", tls.authority)
    informed.revoke(tls.authority.issue(tls.directory / "server.p12", password=SERVER_PASSWORD))
    host = nodes.start(tls, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    expect_refusal(nodes.start(informed, *QUICK, script(WAIT)), "no secure channel", "its certificate is revoked")
    end(host)


def test_a_master_with_a_name_that_was_not_dialled(nodes: Nodes, tls: Files, script: Script):
    tls.authority.issue(tls.directory / "server.p12", password=SERVER_PASSWORD, names=["elsewhere", "10.1.2.3"])
    host = nodes.start(tls, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    expect_refusal(nodes.start(tls, *QUICK, script(WAIT)), "is for elsewhere, 10.1.2.3, not for 127.0.0.1")
    end(host)


def test_a_name_that_was_dialled_is_right(nodes: Nodes, tls: Files, script: Script):
    tls.authority.issue(tls.directory / "server.p12", password=SERVER_PASSWORD, names=["elsewhere", "127.0.0.1"])
    host = nodes.start(tls, *QUICK, script(WAIT), nnodes="2")
    host.wait_for("node_joined")
    job = nodes.start(tls, *QUICK, script("pass"), nnodes="2")
    job.wait_for("workers_started")
    kill(host.pid, signal.SIGINT)
    assert [host.wait(), job.wait()] == [128 + signal.SIGINT] * 2


@pytest.mark.parametrize("days", [(-9, -2), (2, 9)])
def test_a_client_outside_its_time(nodes: Nodes, tls: Files, script: Script, days: tuple[float, float]):
    """A node would not dial with such a certificate; by another node's clock it may still have one."""
    context = tls.client()
    stale = Files(tls.directory / "stale", tls.authority)
    host = nodes.start(tls, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    with_key = stale.authority.issue_pem(stale.directory / "stale.pem", days=days)
    context.load_cert_chain(with_key)
    with pytest.raises((urllib.error.URLError, ssl.SSLError)) as refused:
        nodes.open("/healthz", context)
    assert "alert" in str(refused.value)
    word = "has expired" if days[1] < 0 else "is not valid yet"
    host.wait_for_output(f"refused a connection: a client's certificate {word}")
    end(host)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_version_of_tls(nodes: Nodes, tls: Files, script: Script):
    host = nodes.start(tls, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        context = tls.client()
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with pytest.raises(urllib.error.URLError, match="protocol version"):
            nodes.open("/healthz", context)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = tls.client()
        context.minimum_version = context.maximum_version = version
        with nodes.open("/healthz", context) as answer:
            assert json.load(answer)["ok"] is True
    end(host)


def test_a_certificate_that_nobody_signed(nodes: Nodes, tls: Files, script: Script):
    host = nodes.start(tls, *QUICK, script(WAIT))
    host.wait_for_output("ready")
    context = tls.client()
    context.load_cert_chain(Authority().issue_pem(tls.directory / "own.pem"))
    with pytest.raises((urllib.error.URLError, ssl.SSLError)) as refused:
        nodes.open("/healthz", context)
    assert "alert" in str(refused.value)
    host.wait_for_output("refused a connection: a client's certificate is not from the authority")
    end(host)
