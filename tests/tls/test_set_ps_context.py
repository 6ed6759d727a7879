"""The secure channel turned on by a script: MindSpore's function, and `holdfast.init(tls=...)`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from certs import CLIENT_PASSWORD, PASSWORDS, SEED_CIPHERS, SERVER_PASSWORD, Files
from jobs import PYTHON, StartJob, clean_env, free_port

pytestmark = pytest.mark.timeout(150)

LAUNCH = """
import sys
from holdfast.cli.main import main
from holdfast.compat import set_ps_context

set_ps_context(config_file_path="{config}", enable_ssl=True, client_password="{client}", server_password="{server}")
if "off" in sys.argv:
    set_ps_context(enable_ssl=False)
sys.exit(main(["run", "--start-method", "spawn", "{script}"]))
"""
WORKER = """
import os
from holdfast.compat import set_ps_context

set_ps_context(config_file_path="/certs/tls.json", enable_ssl=True, client_password="x", server_password="x")
print("on", flush=True)
"""

MEMBER = """
import holdfast
from holdfast.compat import set_ps_context

set_ps_context(config_file_path="{config}", enable_ssl=True, client_password="{client}", server_password="{server}")
print("on", flush=True)
holdfast.init()
"""
INIT = """
import holdfast

holdfast.init(tls="/certs/tls.json")
print("on", flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


def launch(tls: Files, worker: Path, *args: str, client: str = CLIENT_PASSWORD) -> subprocess.CompletedProcess[str]:
    path = worker.parent / "launch.py"
    path.write_text(LAUNCH.format(config=tls.config, client=client, server=SERVER_PASSWORD, script=worker))
    command = [PYTHON, str(path), *args]
    return subprocess.run(command, env=clean_env(), capture_output=True, text=True, check=False, timeout=30)


def test_a_program_turns_tls_on_for_the_job_that_it_starts(tls: Files, worker: Path):
    done = launch(tls, worker)
    assert (done.stdout, done.stderr, done.returncode) == ("on\n", "", 0)


def test_the_configuration_of_mindspores_manual_is_taken_as_it_is(tls: Files, worker: Path):
    tls.write(cipher_list=SEED_CIPHERS)
    done = launch(tls, worker)
    assert (done.stdout, done.returncode) == ("on\n", 0), done.stderr
    [said] = done.stderr.splitlines()
    assert "cipher_list: not supported and left out: DHE-RSA-AES128-GCM-SHA256" in said


def test_it_can_be_turned_off_again(tls: Files, worker: Path):
    done = launch(tls, worker, "off")
    assert done.returncode == 1
    assert "JobError: this job runs without TLS: start it with --tls-config /certs/tls.json" in done.stderr


def test_a_wrong_password_is_noticed_at_once(tls: Files, worker: Path):
    done = launch(tls, worker, client="open-barley")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "SpecError" in last
    assert "the password from HOLDFAST_TLS_CLIENT_PASSWORD is wrong" in last
    assert "barley" not in last


def start_member(tls: Files, role: str, *, server: str = SERVER_PASSWORD) -> subprocess.CompletedProcess[str]:
    """A process of a cluster that forms itself; no scheduler is there."""
    code = MEMBER.format(config=tls.config, client=CLIENT_PASSWORD, server=server)
    env = {
        "MS_ROLE": role,
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(free_port()),
        "MS_WORKER_NUM": "1",
        "MS_SERVER_NUM": "1",
        "MS_TOPO_TIMEOUT": "0.5",
    }
    return subprocess.run(
        [PYTHON, "-c", code], env=clean_env(env), capture_output=True, text=True, check=False, timeout=60
    )


def test_a_machine_without_the_file_of_the_server_takes_both_passwords(tls: Files):
    (tls.directory / "server.p12").unlink()
    done = start_member(tls, "MS_PSERVER")
    assert done.stdout == "on\n", done.stderr
    assert "no master at 127.0.0.1:" in done.stderr, "it has looked for the scheduler"


def test_a_scheduler_without_that_file_says_that_it_is_missing(tls: Files):
    (tls.directory / "server.p12").unlink()
    done = start_member(tls, "MS_SCHED")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"server_cert_path: '{tls.directory}/server.p12' is not valid; the file cannot be read: No such file" in last


def test_where_that_file_is_a_wrong_password_of_it_is_noticed_at_once(tls: Files):
    done = start_member(tls, "MS_WORKER", server="open-barley")
    assert (done.stdout, done.returncode) == ("", 1)
    last = done.stderr.splitlines()[-1]
    assert "the password from HOLDFAST_TLS_SERVER_PASSWORD is wrong" in last
    assert "barley" not in last


@pytest.mark.parametrize("code", [WORKER, INIT], ids=["set_ps_context", "init"])
def test_in_a_worker_it_asks_for_a_job_with_tls(tls: Files, worker: Path, run_job: StartJob, code: str):
    worker.write_text(code)
    secure = run_job("--start-method", "spawn", "--tls-config", tls.config, worker, env=PASSWORDS)
    assert secure.wait() == 0, secure.story()
    assert secure.out == "on\n"
    plain = run_job("--start-method", "spawn", "--max-restarts", 0, worker)
    assert plain.wait() == 1
    assert "this job runs without TLS" in plain.err


def test_a_configuration_is_needed(tls: Files, worker: Path):
    tls = Files(worker.parent / "none")
    Path(tls.config).unlink()
    done = launch(tls, worker)
    assert done.returncode == 1
    assert "SpecError: config_file_path" in done.stderr.splitlines()[-1]
