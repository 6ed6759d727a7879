"""Three machines, one of which has a bad cable: network namespaces around a bridge, and a shaped interface."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import HOLDFAST, Job, start

CABLE, BRIDGE, PREFIX = "cable", "bridge", "hfhealth"
NAMES = [f"{PREFIX}{number}" for number in range(3)]
ADDRESSES = [f"10.79.0.{number + 1}" for number in range(3)]
HOST = """
import os
os.write(1, b"here\\n")
"""

pytestmark = pytest.mark.timeout(200)


def inside(number: int, *command: str) -> None:
    subprocess.run(["ip", "netns", "exec", NAMES[number], *command], check=True, timeout=30, capture_output=True)


def build() -> None:
    for name in NAMES:
        subprocess.run(["ip", "netns", "add", name], check=True, timeout=30, capture_output=True)
    inside(0, "ip", "link", "add", CABLE, "type", "bridge")
    for number in (1, 2):
        inside(0, "ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", CABLE, "netns", NAMES[number])
        inside(0, "ip", "link", "set", f"port{number}", "master", CABLE, "up")
    for number, address in enumerate(ADDRESSES):
        inside(number, "ip", "address", "add", f"{address}/24", "dev", CABLE)
        inside(number, "ip", "link", "set", CABLE, "up")
        inside(number, "ip", "link", "set", "lo", "up")


def remove() -> None:
    for name in NAMES:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def machines() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    remove()
    try:
        build()
        inside(
            2,
            "tc",
            "qdisc",
            "add",
            "dev",
            CABLE,
            "root",
            "tbf",
            *["rate", "500mbit", "burst", "64kb", "latency", "500ms"],
        )
    except (OSError, subprocess.CalledProcessError) as error:
        remove()
        pytest.skip(f"no machines with shaped cables here: {error}")
    yield
    remove()


def test_a_node_with_a_slow_cable_is_found_by_its_all_reduce(
    machines: None, script: Callable[..., Path], tmp_path: Path
):
    path = script(HOST)
    flags = ["--nnodes", "2:3", "--rdzv-endpoint", f"{ADDRESSES[0]}:9601", "--network-check", "--exclude-straggler"]
    jobs: list[Job] = []
    try:
        for name in NAMES:
            directory = tmp_path / name
            enter = ["ip", "netns", "exec", name, HOLDFAST, "run", "--events", str(directory / "events.jsonl")]
            jobs.append(start([*enter, *flags, str(path)], directory=directory, env={"GLOO_SOCKET_IFNAME": CABLE}))
            jobs[0].wait_for("node_joined")
        host, other, slow = jobs
        refused = host.wait_for("node_unfit")
        assert (refused["fitness"], refused["metric"], refused["decision"]) == ("slow", "all_reduce", "refused")
        assert slow.wait() == 1, slow.story()
        assert refused["node"] in slow.err
        assert [host.wait(), other.wait()] == [0, 0], host.story()
        assert len(host.events("node_unfit")) == 1
    finally:
        for job in jobs:
            job.destroy()
