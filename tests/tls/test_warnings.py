"""What is only worth a warning."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from certs import CLIENT_PASSWORD, PASSWORDS, SEED_CIPHERS, SERVER_PASSWORD, Files, in_days
from jobs import StartJob

from holdfast.agent.channel import Channel
from holdfast.spec.tls import find_tls
from holdfast.wire.certificates import expiry_warnings, open_client

pytestmark = pytest.mark.timeout(150)


def warnings(files: Files, *, days_from_now: float = 0.0) -> list[str]:
    tls, _ = find_tls(files.config, PASSWORDS)
    assert tls is not None
    return expiry_warnings(open_client(tls), within_days=tls.warning_days, now=in_days(days_from_now))


@pytest.mark.parametrize(("days", "warned"), [(89.5, True), (90.5, False)])
def test_a_certificate_is_warned_of_90_days_before_its_end(tls: Files, days: float, warned: bool):
    tls.without("cert_expire_warning_time_in_day")
    tls.authority.issue(tls.directory / "client.p12", password=CLIENT_PASSWORD, days=(-1, days))
    found = warnings(tls)
    assert len(found) == warned
    if warned:
        assert (
            found[0] == f"client_cert_path {tls.directory}/client.p12 expires in 89 days, on {in_days(days):%Y-%m-%d}"
        )


def test_the_time_of_the_warning_can_be_set(tls: Files):
    tls.authority.issue(tls.directory / "client.p12", password=CLIENT_PASSWORD, days=(-1, 100))
    tls.write(cert_expire_warning_time_in_day=180)
    assert "expires in 99 days" in warnings(tls)[0]


def test_a_certificate_that_expires_while_a_job_runs(tls: Files):
    tls.authority.issue(tls.directory / "client.p12", password=CLIENT_PASSWORD, days=(-1, 10))
    [warning] = warnings(tls, days_from_now=11)
    assert f"client.p12 expired on {in_days(10):%Y-%m-%d}" in warning


def test_warnings_come_again(tls: Files):
    for name, password in (("client", CLIENT_PASSWORD), ("server", SERVER_PASSWORD)):
        tls.authority.issue(tls.directory / f"{name}.p12", password=password, days=(-1, 10))
    spec, _ = find_tls(tls.config, PASSWORDS)
    assert spec is not None

    async def listen() -> list[str]:
        channel = Channel(spec)
        channel.serving()
        channel.dialling()
        said: asyncio.Queue[str] = asyncio.Queue()
        reminding = asyncio.create_task(channel.remind(said.put_nowait, every_s=0.001))
        heard = [await said.get() for _ in range(4)]
        reminding.cancel()
        return heard

    assert [warning.split()[0] for warning in asyncio.run(listen())] == ["client_cert_path", "server_cert_path"] * 2


def test_a_job_runs_in_spite_of_warnings(tls: Files, run_job: StartJob, tmp_path: Path):
    tls.authority.issue(tls.directory / "server.p12", password=SERVER_PASSWORD, days=(-1, 10))
    tls.revoke(days=(-9, -2))
    tls.write(cipher_list=SEED_CIPHERS, cert_expire_warning_time_in_da=90)
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    job = run_job("--start-method", "spawn", "--tls-config", tls.config, path, env=PASSWORDS)
    assert job.wait() == 0, job.story()
    assert job.out == "trained\n"
    said = sorted(line.removeprefix("holdfast: ") for line in job.err.splitlines())
    assert len(said) == 4, job.err
    unknown, ciphers, revocations, server = said
    assert "cipher_list: not supported and left out: DHE-RSA-AES128-GCM-SHA256" in ciphers
    assert "ECDHE-RSA-AES128-GCM-SHA256" not in ciphers.replace("DHE-RSA-AES128-GCM-SHA256", "", 1)
    assert "cert_expire_warning_time_in_da does nothing here" in unknown
    assert f"was to be renewed by {in_days(-2):%Y-%m-%d}; it is used as it is" in revocations
    assert "server.p12 expires in 9 days" in server
