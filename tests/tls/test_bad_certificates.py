"""Whatever is wrong with the certificates of a node is said before it dials, in one line, with field and file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from certs import CLIENT_PASSWORD, PASSWORDS, SERVER_PASSWORD, Authority, Files, in_days
from jobs import HOLDFAST, run_in_vain

pytestmark = pytest.mark.timeout(90)

Spoil = Callable[[Files], object]


def issue(files: Files, name: str, **options: object) -> int:
    password = SERVER_PASSWORD if name == "server" else CLIENT_PASSWORD
    authority = options.pop("authority", files.authority)
    assert isinstance(authority, Authority)
    return authority.issue(files.directory / f"{name}.p12", password=password, **options)  # type: ignore[arg-type]


def give_authority(files: Files, authority: Authority) -> None:
    files.authority = authority
    (files.directory / "ca.crt").write_bytes(authority.pem)
    issue(files, "server")
    issue(files, "client")


def of_another_authority(files: Files) -> None:
    other = Authority()
    other.revoke(files.directory / "crl.pem", [])
    files.write(crl_path="crl.pem")


WRONG: dict[str, tuple[Spoil, tuple[str | int, ...]]] = {
    # A number: the day so many from now, which must be told.
    "no configuration": (lambda files: Path(files.config).unlink(), ("--tls-config", "tls.json", "No such file")),
    "no JSON": (lambda files: Path(files.config).write_text("{"), ("--tls-config", "JSON")),
    "no object": (lambda files: Path(files.config).write_text("[]"), ("--tls-config", "object", "ca_cert_path")),
    "no field": (lambda files: files.without("client_cert_path"), ("client_cert_path", "None", "must be there")),
    "a number for a path": (lambda files: files.write(ca_cert_path=1), ("ca_cert_path", "1", "text")),
    "warning too late": (
        lambda files: files.write(cert_expire_warning_time_in_day=5),
        ("cert_expire_warning_time_in_day", "5 ", "from 7 to 180"),
    ),
    "warning too soon": (
        lambda files: files.write(cert_expire_warning_time_in_day=200),
        ("cert_expire_warning_time_in_day", "200", "from 7 to 180"),
    ),
    "warning in words": (
        lambda files: files.write(cert_expire_warning_time_in_day="90"),
        ("cert_expire_warning_time_in_day", "'90'", "whole number"),
    ),
    "no cipher": (lambda files: files.write(cipher_list=""), ("cipher_list", "''", "not empty")),
    "no cipher that exists": (
        lambda files: files.write(cipher_list="ECDHE-FOO : ADH-AES128-GCM-SHA256:ALL"),
        ("cipher_list", "'ECDHE-FOO:ADH-AES128-GCM-SHA256:ALL'", "none of these is supported"),
    ),
    "no client's file": (
        lambda files: (files.directory / "client.p12").unlink(),
        ("client_cert_path", "client.p12", "No such file"),
    ),
    "no server's file": (
        lambda files: (files.directory / "server.p12").unlink(),
        ("server_cert_path", "server.p12", "No such file"),
    ),
    "no authority's file": (
        lambda files: (files.directory / "ca.crt").unlink(),
        ("ca_cert_path", "ca.crt", "No such file"),
    ),
    "no revocation list": (lambda files: files.write(crl_path="gone.pem"), ("crl_path", "gone.pem", "No such file")),
    "a client of another authority": (
        lambda files: issue(files, "client", authority=Authority()),
        ("client_cert_path", "must be signed by the authority in"),
    ),
    "a server of another authority": (
        lambda files: issue(files, "server", authority=Authority()),
        ("server_cert_path", "must be signed by the authority in"),
    ),
    "a client that has expired": (
        lambda files: issue(files, "client", days=(-9, -2)),
        ("client_cert_path", "expired on", -2),
    ),
    "a server that has expired": (
        lambda files: issue(files, "server", days=(-9, -2)),
        ("server_cert_path", "expired on"),
    ),
    "an authority that has expired": (
        lambda files: give_authority(files, Authority(days=(-9, -2))),
        ("ca_cert_path", "expired on"),
    ),
    "a client of tomorrow": (
        lambda files: issue(files, "client", days=(1, 9)),
        ("client_cert_path", "not valid before", 1),
    ),
    "a server of tomorrow": (
        lambda files: issue(files, "server", days=(1, 9)),
        ("server_cert_path", "not valid before"),
    ),
    "a client that is revoked": (
        lambda files: files.revoke(files.client_serial),
        ("client_cert_path", "is revoked by"),
    ),
    "a server that is revoked": (
        lambda files: files.revoke(issue(files, "server")),
        ("server_cert_path", "is revoked by"),
    ),
    "somebody else's revocations": (of_another_authority, ("crl_path", "must be signed by the authority in")),
    "revocations of tomorrow": (lambda files: files.revoke(days=(1, 9)), ("crl_path", "not valid before")),
    "no revocations in the file": (
        lambda files: files.write(crl_path="ca.crt"),
        ("crl_path", "ca.crt", "a revocation list in PEM or DER"),
    ),
    "no PEM": (lambda files: files.write(ca_cert_path="client.p12"), ("ca_cert_path", "client.p12", "in PEM")),
    "no authority": (
        lambda files: give_authority(files, Authority(is_authority=False)),
        ("ca_cert_path", "ca.crt", "CA:TRUE"),
    ),
    "no PKCS#12": (lambda files: files.write(client_cert_path="ca.crt"), ("client_cert_path", "ca.crt", "PKCS#12")),
}


def refuse(files: Files, env: dict[str, str]) -> str:
    """What `holdfast run` says, and nothing else."""
    script = files.directory / "train.py"
    script.write_text("print('the script was run')\n")
    command = [HOLDFAST, "run", "--start-method", "spawn", "--tls-config", files.config, str(script)]
    done = run_in_vain(command, directory=files.directory, env=env)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert SERVER_PASSWORD not in done.stderr
    assert CLIENT_PASSWORD not in done.stderr
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("name", WRONG)
def test_a_bad_configuration_or_certificate(tls: Files, name: str):
    spoil, words = WRONG[name]
    spoil(tls)
    said = refuse(tls, PASSWORDS)
    for word in words:
        assert (word if isinstance(word, str) else f"{in_days(word):%Y-%m-%d}") in said


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_wrong_password_is_not_repeated(tls: Files, side: str):
    variable = f"HOLDFAST_TLS_{side.upper()}_PASSWORD"
    said = refuse(tls, {**PASSWORDS, variable: "open-barley"})
    for word in (f"{side}_cert_path", f"{side}.p12", f"the password from {variable} is wrong"):
        assert word in said
    assert "barley" not in said


@pytest.mark.parametrize("side", ["client", "server"])
def test_no_password_names_every_way_to_give_one(tls: Files, side: str):
    variable = f"HOLDFAST_TLS_{side.upper()}_PASSWORD"
    said = refuse(tls, {name: value for name, value in PASSWORDS.items() if name != variable})
    for word in (f"{side}_cert_path", variable, f"{variable}_FILE", f"{side}.password"):
        assert word in said


@pytest.mark.parametrize(("content", "word"), [(None, "No such file"), ("\n", "empty")])
def test_a_bad_password_file(tls: Files, content: str | None, word: str):
    file = tls.directory / "secret"
    if content is not None:
        file.write_text(content)
    env = {"HOLDFAST_TLS_CLIENT_PASSWORD_FILE": str(file), "HOLDFAST_TLS_SERVER_PASSWORD": SERVER_PASSWORD}
    said = refuse(tls, env)
    for each in ("HOLDFAST_TLS_CLIENT_PASSWORD_FILE", str(file), word):
        assert each in said
