"""Faults of a node's network, made inside its own namespace: this machine's network is never touched."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.chaos import packets
from holdfast.chaos.api import Effect, Fault, Memo, Parameter, Process
from holdfast.chaos.delays import ENDS, MAKE, Delayer
from holdfast.chaos.pids import is_alive
from holdfast.errors import JobError
from holdfast.platforms.local.namespaces import IP_S, configure, in_namespace

HANDLE = "ca05:"
"""Of a queue of ours: no other one is ever removed."""

T = TypeVar("T")


class NetworkEffect(Effect):
    def prepare(self) -> None:
        if self.target.network is None:
            raise JobError(
                f"{self.target.name} has no network of its own: it shares this machine's, which is not touched; "
                "a job has nodes with networks of their own with --network namespace"
            )
        self._network: Process = self.target.network
        self.interface = self.values.text("interface")

    def inside(self, act: Callable[[], T]) -> T:
        if not is_alive(self._network):
            raise JobError(f"{self.target.name} is gone")
        return in_namespace(self._network.pid, act)

    @property
    def is_there(self) -> bool:
        """Whether there is a network to take anything back from: it goes with the node."""
        return is_alive(self._network)

    def call(self, *command: str) -> str:
        """Run a command of iproute2 there."""
        if shutil.which(command[0]) is None:
            raise JobError(f"the command {command[0]} (iproute2) is not installed")
        done = self.inside(lambda: subprocess.run(command, capture_output=True, text=True, timeout=IP_S, check=False))
        if done.returncode:
            raise JobError(f"{' '.join(command)}: {done.stderr.strip().splitlines()[0]}")
        return done.stdout

    def add_queue(self, *queue: str) -> None:
        self.call("tc", "qdisc", "add", "dev", self.interface, "root", "handle", HANDLE, *queue)

    def remove_queue(self) -> None:
        """If there is one of ours."""
        if not self.is_there:
            return
        shown: list[dict[str, Any]] = json.loads(self.call("tc", "-j", "qdisc", "show", "dev", self.interface))
        if any(queue["handle"] == HANDLE for queue in shown):
            self.call("tc", "qdisc", "del", "dev", self.interface, "root", "handle", HANDLE)


def needs_queue() -> bool:
    """Whether packets are lost and delayed by a queue, of what the node sends: an older kernel has nothing better."""
    return not packets.is_possible(platform.release(), platform.machine())


def losing_queue(percent: float) -> tuple[str, ...]:
    """One without room needs no module."""
    return ("pfifo", "limit", "0") if percent == 100 else ("netem", "loss", f"{percent:g}%")


def delaying_queue(delay_ms: float, jitter_ms: float) -> tuple[str, ...]:
    return "netem", "delay", f"{delay_ms:g}ms", f"{jitter_ms:g}ms"


class Delay(NetworkEffect):
    _delayer: Delayer | None = None

    def prepare(self) -> None:
        super().prepare()
        self._delay_ms = self.values.number("ms", least=0.001, most=60_000)
        self._jitter_ms = self.values.number("jitter", least=0, most=60_000)

    def apply(self) -> str:
        if needs_queue():
            self.add_queue(*delaying_queue(self._delay_ms, self._jitter_ms))
        else:
            configure(self._network.pid, MAKE)
            delay_s, jitter_s = self._delay_ms / 1000, self._jitter_ms / 1000
            self._delayer = self.inside(lambda: Delayer(self.interface, delay_s=delay_s, jitter_s=jitter_s))
        late = f"{self._delay_ms:g} ms" + (f", give or take {self._jitter_ms:g} ms" if self._jitter_ms else "")
        return f"what {self.target.node or self.target.name} sends is late by {late}"

    def undo(self) -> None:
        if needs_queue():
            self.remove_queue()
        if self._delayer is not None:
            self._delayer.close()
            self._delayer = None
        if self.is_there and ENDS[0] in self.inside(lambda: [name for _, name in socket.if_nameindex()]):
            configure(self._network.pid, [f"link delete {ENDS[0]}"])


class Rate(NetworkEffect):
    """A queue at the node's end of its cable."""

    def prepare(self) -> None:
        super().prepare()
        self._bytes_per_s = self.values.size("bytes")

    def apply(self) -> str:
        rate = f"{self._bytes_per_s * 8}bit"
        self.add_queue("tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
        return f"{self.target.node or self.target.name} can send {self.values.text('bytes')} bytes a second"

    def undo(self) -> None:
        self.remove_queue()


class Loss(NetworkEffect):
    _filters: Sequence[packets.Filter] = ()

    def prepare(self) -> None:
        super().prepare()
        self._percent = self.values.number("percent", least=0, most=100)

    def apply(self) -> str:
        if needs_queue():
            self.add_queue(*losing_queue(self._percent))
            return f"{self._percent:g} % of what {self.target.node} sends on {self.interface} is lost"
        # The kernel drops the filters when this process closes them, or ends.
        self._filters = self.inside(lambda: packets.lose(self.interface, share=self._percent / 100))
        return f"{self._percent:g} % of what {self.target.node} sends and gets on {self.interface} is lost"

    def undo(self) -> None:
        if needs_queue():
            self.remove_queue()
        for each in self._filters:
            each.close()


class Partition(NetworkEffect):
    def look(self) -> Memo:
        routes = self.call("ip", "-4", "route", "show", "dev", self.interface).splitlines()
        return {"routes": [route.split() for route in routes if "proto kernel" not in route]}

    def apply(self) -> str:
        self.call("ip", "link", "set", self.interface, "down")
        return f"{self.interface} of {self.target.node} is down"

    def undo(self) -> None:
        if not self.is_there:
            return
        self.call("ip", "link", "set", self.interface, "up")
        for route in self.memo["routes"]:
            self.call("ip", "route", "replace", *route, "dev", self.interface)


INTERFACE = {"interface": Parameter("Which one of the node's.", "eth0")}
NONE = "none: only root may shape a network"

FAMILY = (
    Fault(
        name="network-loss",
        summary="Packets of the node are lost, both ways (before Linux 6.6: those it sends).",
        parameters={"percent": Parameter("How many of a hundred.", "100"), **INTERFACE},
        needs_root=True,
        without_root="stop, which silences a process but keeps its connections open",
        undo="the filter is taken away",
        make=Loss,
    ),
    Fault(
        name="network-delay",
        summary="What the node sends is late.",
        parameters={
            "ms": Parameter("How late.", "100"),
            "jitter": Parameter("By how many ms that varies.", "0"),
            **INTERFACE,
        },
        needs_root=True,
        without_root=NONE,
        undo="nothing is held any more",
        make=Delay,
    ),
    Fault(
        name="network-rate",
        summary="The node can send only so much (a token bucket).",
        parameters={"bytes": Parameter("Bytes a second, as 1Mi.", "1Mi"), **INTERFACE},
        needs_root=True,
        without_root=NONE,
        undo="the queue is taken away",
        make=Rate,
    ),
    Fault(
        name="network-partition",
        summary="The node's cable is pulled: its interface is down.",
        parameters=INTERFACE,
        needs_root=True,
        without_root="stop on node:NAME, which silences the node but keeps its connections open",
        undo="the interface is up again, with its routes",
        make=Partition,
    ),
)
