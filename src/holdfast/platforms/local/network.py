"""The network in which nodes meet: a bridge in the keeper's namespace, and a cable to each node."""

from __future__ import annotations

import os
import shutil

from holdfast.platforms.local.keeper import Keeper
from holdfast.platforms.local.namespaces import configure, leave_network

BRIDGE = "nodes"
INTERFACE = "eth0"
MASTER_ADDRESS = "10.86.0.1"
BRIDGE_ADDRESS = "02:00:0a:56:00:01"
"""Fixed: else it would change with the cables, and nodes would send to where nobody is."""
MOST_IDS = (1 << 16) - 512
"""Addresses go round after so many nodes."""


def obstacle() -> str:
    """Why nodes cannot have networks of their own here; empty if they can."""
    if os.geteuid() != 0:
        return "only root can make networks"
    if shutil.which("ip") is None:
        return "the command ip (iproute2) is not installed"
    child = os.fork()
    if child == 0:
        os._exit(1 if leave_network() else 0)
    _, status = os.waitpid(child, 0)
    return "the kernel refuses to make a network" if status else ""


class Network:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        configure(
            keeper.pid,
            [
                "link set lo up",
                f"link add {BRIDGE} address {BRIDGE_ADDRESS} type bridge",
                f"address add {MASTER_ADDRESS}/16 dev {BRIDGE}",
                f"link set {BRIDGE} up",
                # Where no cable can be laid, it shall be known before there are nodes.
                "link add trial type veth peer name trial-end",
                "link del trial",
            ],
        )

    @property
    def pid(self) -> int:
        """A process in it."""
        return self._keeper.pid

    def address(self, node_id: int) -> str:
        number = 256 + node_id % MOST_IDS
        return f"10.86.{number >> 8}.{number & 255}"

    def connect(self, node_id: int, pid: int) -> None:
        """Lay a cable to a node that stands apart already."""
        cable = f"n{node_id}"
        configure(
            self.pid,
            [
                f"link add {cable} type veth peer name {INTERFACE} netns {pid}",
                f"link set {cable} master {BRIDGE}",
                f"link set {cable} up",
            ],
        )
        configure(
            pid,
            ["link set lo up", f"address add {self.address(node_id)}/16 dev {INTERFACE}", f"link set {INTERFACE} up"],
        )
