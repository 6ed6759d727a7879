"""`holdfast cert init`: one command makes everything that `--tls-config` needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from jobs import HOLDFAST, StartJob, clean_env

from holdfast.spec.tls import find_tls
from holdfast.wire.certificates import open_client, open_server

pytestmark = pytest.mark.timeout(150)

FILES = {"ca.crt", "ca.key", "client.p12", "server.p12", "tls.json"}
MADE_UP = {"client.password", "server.password"}


def init(*args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [HOLDFAST, "cert", "init", *map(str, args)]
    return subprocess.run(command, env=clean_env(env), capture_output=True, text=True, check=False, timeout=20)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_two_lines_turn_tls_on(run_job: StartJob, tmp_path: Path):
    made = init(tmp_path / "tls", "--hosts", "node1,10.0.0.1")
    assert (made.returncode, made.stderr) == (0, "")
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    job = run_job("--start-method", "spawn", "--tls-config", tmp_path / "tls" / "tls.json", script)
    assert job.wait() == 0, job.story()
    assert (job.out, job.err) == ("trained\n", "")


def test_only_the_owner_can_read_what_was_made(tmp_path: Path):
    directory = tmp_path / "new" / "tls"
    assert init(directory).returncode == 0
    assert names(directory) == FILES | MADE_UP
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    passwords = {(directory / name).read_text() for name in MADE_UP}
    assert len(passwords) == 2
    assert min(map(len, passwords)) > 20


def test_the_certificates_are_for_the_hosts_and_for_this_machine(tmp_path: Path):
    assert init(tmp_path, "--hosts", "node1, 10.0.0.1,::2").returncode == 0
    tls, notes = find_tls(str(tmp_path / "tls.json"), {})
    assert tls is not None
    assert notes == []
    for opened in (open_server(tls), open_client(tls)):
        assert opened.notes == ()
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName"],
        input=open_server(tls).credentials.certificate,
        capture_output=True,
        text=True,
        check=True,
    )
    for host in ("DNS:node1", "IP Address:10.0.0.1", "0:0:0:0:0:0:0:2", "DNS:localhost", "IP Address:127.0.0.1"):
        assert host in shown.stdout


def test_passwords_of_ones_own(tmp_path: Path):
    (tmp_path / "mine").write_text("open-barley\n")
    env = {"HOLDFAST_TLS_SERVER_PASSWORD": "open-wheat", "HOLDFAST_TLS_CLIENT_PASSWORD_FILE": str(tmp_path / "mine")}
    made = init(tmp_path / "tls", env=env)
    assert made.returncode == 0
    assert names(tmp_path / "tls") == FILES, "passwords that the user knows are written nowhere"
    tls, _ = find_tls(str(tmp_path / "tls" / "tls.json"), env)
    assert tls is not None
    open_server(tls)
    open_client(tls)
    assert "barley" not in repr(tls) + made.stdout
    assert "wheat" not in repr(tls) + repr(open_server(tls)) + made.stdout


def test_nothing_is_overwritten(tmp_path: Path):
    (tmp_path / "server.p12").write_text("mine")
    refused = init(tmp_path)
    assert refused.returncode == 1
    assert f"{tmp_path} has server.p12 already" in refused.stderr
    assert names(tmp_path) == {"server.p12"}
    assert (tmp_path / "server.p12").read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "words", "code"),
    [
        ((), ("DIR",), 2),
        (("d", "--hosts", "a b"), ("--hosts", "'a b'"), 2),
        (("d", "--hosts", "a,,b"), ("--hosts", "''"), 2),
        (("/proc/tls",), ("/proc/tls", "cannot be written"), 1),
    ],
)
def test_a_wrong_command(args: tuple[str, ...], words: tuple[str, ...], code: int):
    refused = init(*args)
    assert (refused.returncode, refused.stdout) == (code, "")
    for word in words:
        assert word in refused.stderr
