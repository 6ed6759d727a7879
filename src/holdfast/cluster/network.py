"""Which network the workers of a cluster meet in: the one over which they reach the scheduler.

Left to itself, gloo listens at the address that the machine's own name stands for. On many machines that is a loopback
address, at which no other machine finds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

VARIABLE = "GLOO_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915


def use_network_towards(host: str, port: int) -> None:
    """Let gloo use it, unless the user has said which to use."""
    if VARIABLE not in os.environ and (interface := find_interface(host, port)):
        os.environ[VARIABLE] = interface


def find_interface(host: str, port: int) -> str | None:
    """The interface with the address from which packets to `host` go out; None if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((host, port))
        address = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
        return _interfaces(address.version).get(address)
    return None


def _interfaces(version: int) -> dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str]:
    return _with_ipv6() if version == 6 else _with_ipv4()


def _with_ipv4() -> dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str]:
    found: dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                found[ipaddress.IPv4Address(answer[20:24])] = name
    return found


def _with_ipv6() -> dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str]:
    lines = Path("/proc/net/if_inet6").read_text().splitlines()
    return {ipaddress.IPv6Address(bytes.fromhex(line.split()[0])): line.split()[5] for line in lines}
