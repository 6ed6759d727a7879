"""Which address, which interface and which machine a process takes for its own."""

from __future__ import annotations

import os
import subprocess

import pytest
from jobs import PYTHON

from holdfast.cluster.addresses import GROUP_VARIABLES, use_own_address
from holdfast.errors import SpecError
from holdfast.spec.cluster import load_cluster
from holdfast.wire.identity import computer_id, machine_id

GOOD = {"MS_ROLE": "MS_WORKER", "MS_SCHED_PORT": "8118", "MS_WORKER_NUM": "8"}


@pytest.fixture(autouse=True)
def _no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in GROUP_VARIABLES:
        # Set first, so that what the test adds is taken away again.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


@pytest.mark.parametrize(
    ("host", "worker_ip", "address"),
    [("127.0.0.1", "", "127.0.0.1"), ("127.0.0.1", "127.0.0.9", "127.0.0.9"), ("::1", "", "::1")],
)
def test_a_process_is_known_by_its_given_address_or_by_the_one_that_leads_to_the_scheduler(
    host: str, worker_ip: str, address: str
) -> None:
    spec = load_cluster({**GOOD, "MS_SCHED_HOST": host, "MS_WORKER_IP": worker_ip})
    assert spec is not None
    assert use_own_address(spec) == address
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


def test_an_interface_that_the_user_has_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine0")
    spec = load_cluster({**GOOD, "MS_SCHED_HOST": "127.0.0.1"})
    assert spec is not None
    use_own_address(spec)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "mine0"


def test_an_address_of_another_machine_is_refused() -> None:
    spec = load_cluster({**GOOD, "MS_SCHED_HOST": "127.0.0.1", "MS_WORKER_IP": "203.0.113.7"})
    assert spec is not None
    with pytest.raises(SpecError, match=r"MS_WORKER_IP\): '203.0.113.7' .* an address of this machine"):
        use_own_address(spec)


def test_another_network_is_another_machine_whatever_its_name() -> None:
    code = "from holdfast.wire.identity import *; print(computer_id()); print(machine_id())"
    try:
        told = subprocess.run(["unshare", "-rn", PYTHON, "-c", code], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no namespaces here: {error}")
    other_computer, other_machine = told.stdout.split("\n")[:2]
    assert other_computer != computer_id()
    assert other_machine == machine_id(), "its process ids are the same"
