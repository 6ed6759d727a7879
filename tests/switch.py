"""A switch between machines under test, which can lose and delay what they send: no kernel module is needed for it.

    python switch.py PID=ADDRESS...

gives the network namespace of each process an interface `cable` with that address, and passes packets between them. A
line on standard input is an order, `{"address": ..., "mute": false, "deaf": false, "delay_s": 0.0}`; a line comes back
when it is in force. The end of the input ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import selectors
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from ipaddress import IPv4Address

INTERFACE = "cable"
PREFIX_LENGTH = 24
MAX_PACKET_BYTES = 9000
QUEUE_PACKETS = 10_000
MAX_DELAYED = 100_000
"""Packets on their way; more are lost, as in any queue."""
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass
class Port:
    """Where one machine is plugged in."""

    device: int
    mute: bool = False
    """Nobody hears it."""
    deaf: bool = False
    """It hears nobody."""
    delay_s: float = 0.0
    """Each way."""


class Switch:
    def __init__(self, ports: dict[bytes, Port]) -> None:
        self._ports = ports
        self._delayed: list[tuple[float, int, Port, bytes]] = []
        self._num_delayed = 0

    def serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for port in self._ports.values():
                selector.register(port.device, selectors.EVENT_READ, port)
            selector.register(0, selectors.EVENT_READ)
            while True:
                timeout = max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else None
                for key, _ in selector.select(timeout):
                    if key.data is None:
                        if not self._obey():
                            return
                    else:
                        self._pass_on(key.data)
                self._deliver()

    def _obey(self) -> bool:
        """Whether there was another order."""
        line = sys.stdin.buffer.readline()
        if not line:
            return False
        order = json.loads(line)
        port = self._ports[IPv4Address(order["address"]).packed]
        port.mute, port.deaf, port.delay_s = order["mute"], order["deaf"], order["delay_s"]
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
        return True

    def _pass_on(self, source: Port) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(source.device, MAX_PACKET_BYTES)
                target = self._ports.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                if target is None or source.mute or target.deaf:
                    continue
                delay_s = source.delay_s + target.delay_s
                if not delay_s:
                    _hand_over(target, packet)
                elif len(self._delayed) < MAX_DELAYED:
                    self._num_delayed += 1
                    heapq.heappush(self._delayed, (time.monotonic() + delay_s, self._num_delayed, target, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._delayed)
            _hand_over(target, packet)


def _hand_over(target: Port, packet: bytes) -> None:
    # A full queue loses packets.
    with contextlib.suppress(OSError):
        os.write(target.device, packet)


def plug_in(pid: int, address: str) -> Port:
    """An interface in the network namespace of a process; ours at its other end."""
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns of {pid}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), IFF_TUN | IFF_NO_PI))
    size, length = str(MAX_PACKET_BYTES), str(QUEUE_PACKETS)
    for command in (
        ["ip", "address", "add", f"{address}/{PREFIX_LENGTH}", "dev", INTERFACE],
        ["ip", "link", "set", INTERFACE, "mtu", size, "txqueuelen", length, "up"],
    ):
        subprocess.run(command, check=True, timeout=30)
    return Port(device)


def main() -> None:
    pairs = [argument.split("=") for argument in sys.argv[1:]]
    switch = Switch({IPv4Address(address).packed: plug_in(int(pid), address) for pid, address in pairs})
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    switch.serve()


if __name__ == "__main__":
    main()
