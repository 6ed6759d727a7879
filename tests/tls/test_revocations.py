"""A revocation list that is replaced while a job runs counts for whoever connects then."""

from __future__ import annotations

import logging
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from certs import PASSWORDS, Files, in_days
from jobs import Job, StartJob, free_port, kill, until

from holdfast.spec.tls import find_tls
from holdfast.wire.certificates import expiry_warnings, open_client
from holdfast.wire.tls import Revocations, serial

WAIT = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
"""

pytestmark = pytest.mark.timeout(150)


def status_of(port: int, who: Files) -> int:
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/healthz", timeout=10, context=who.client()) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


def replace(tls: Files, *serials: int) -> None:
    """Beyond the grain of a file system's clock, whatever it is."""
    path = tls.directory / "crl.pem"
    before = path.stat().st_mtime_ns
    tls.revoke(*serials)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def open_list(tls: Files) -> Revocations:
    spec, _ = find_tls(tls.config, PASSWORDS)
    assert spec is not None
    return Revocations(open_client(spec).credentials)


def start_job(tls: Files, run_job: StartJob, script: Callable[..., Path]) -> tuple[Job, int]:
    port = free_port()
    flags = ("--start-method", "spawn", "--rdzv-endpoint", f"127.0.0.1:{port}", "--tls-config", tls.config)
    job = run_job(*flags, script(WAIT), env=PASSWORDS)
    job.wait_for_output("ready")
    return job, port


def end(job: Job) -> None:
    for pid in job.wait_for_workers().values():
        kill(pid, signal.SIGUSR1)
    assert job.wait() == 0, job.story()


def test_a_running_job_follows_the_list(tls: Files, run_job: StartJob, script: Callable[..., Path], tmp_path: Path):
    thief = Files(tmp_path / "thief", tls.authority)
    tls.revoke()
    job, port = start_job(tls, run_job, script)
    assert status_of(port, thief) == 200
    replace(tls, thief.client_serial)
    assert [status_of(port, who) for who in (thief, tls)] == [403, 200]
    old = job.wait_for_process("master")
    kill(old)
    until(lambda: job.find("master") not in (None, old), within_s=30, what="another master", tell=job.story)
    job.wait_for("master_restored")
    assert status_of(port, thief) == 403, "also by a master that was started again"
    replace(tls)
    assert status_of(port, thief) == 200
    end(job)


def test_a_job_goes_on_with_the_list_before_a_bad_one(
    tls: Files, run_job: StartJob, script: Callable[..., Path], tmp_path: Path
):
    thief = Files(tmp_path / "thief", tls.authority)
    tls.revoke(thief.client_serial)
    job, port = start_job(tls, run_job, script)
    (tls.directory / "crl.pem").unlink()
    for _ in range(3):
        assert status_of(port, thief) == 403
    job.wait_for_output("crl.pem is not used")
    end(job)
    assert job.err.count("the revocations before it still count") == 1


def test_whoever_dials_follows_the_list_too(tls: Files):
    tls.revoke()
    revocations = open_list(tls)
    assert revocations.current() == frozenset()
    replace(tls, 17)
    assert revocations.current() == {serial(17)}


def test_a_list_of_another_authority_is_not_used(tls: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    tls.revoke(17)
    revocations = open_list(tls)
    other = Files(tmp_path / "other")
    other.revoke(18)
    (other.directory / "crl.pem").rename(tls.directory / "crl.pem")
    with caplog.at_level(logging.WARNING):
        assert revocations.current() == {serial(17)}
        assert revocations.current() == {serial(17)}
    [said] = caplog.messages
    assert "it must be signed by the authority" in said


def test_the_warning_is_of_the_list_that_is_there_now(tls: Files):
    tls.revoke(days=(-9, -2))
    spec, _ = find_tls(tls.config, PASSWORDS)
    assert spec is not None
    opened = open_client(spec)
    [warning] = expiry_warnings(opened, within_days=7, now=in_days(0))
    assert f"was to be renewed by {in_days(-2):%Y-%m-%d}" in warning
    tls.revoke(days=(-1, 30))
    assert expiry_warnings(opened, within_days=7, now=in_days(0)) == []
