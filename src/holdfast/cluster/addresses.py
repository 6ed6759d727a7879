"""Which of its machine's addresses a process of a cluster uses."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from holdfast.errors import SpecError
from holdfast.spec.cluster import VARIABLES, ClusterSpec

GROUP_VARIABLES = {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "="}
"""Torch's groups are told the network by the name of an interface; where the user has done so, that holds. NCCL takes
every interface whose name begins so, unless it is told otherwise."""

RTM_NEWADDR, RTM_GETADDR, NLMSG_DONE = 20, 22, 3
NLM_F_REQUEST_DUMP = 0x301
IFA_ADDRESS, IFA_LOCAL = 1, 2


def use_own_address(spec: ClusterSpec) -> str:
    """The address that others know this process by, given or else the one that leads to the scheduler.

    The groups of `torch.distributed` in this process use it too.
    """
    address = spec.worker_ip or _address_towards(spec.host, spec.port)
    wanted = ipaddress.ip_address(address)
    # All of 127.0.0.0/8 is there, and only one of it is listed.
    names = [name for name, each in _interfaces() if each == wanted or (each.is_loopback and wanted.is_loopback)]
    name = next(iter(names), None)
    if name is None:
        raise SpecError(VARIABLES["worker_ip"].names, address, "it must be an address of this machine")
    for variable, exactly in GROUP_VARIABLES.items():
        os.environ.setdefault(variable, f"{exactly}{name}")
    return address


def _address_towards(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: it only makes the system choose.
            probe.connect((host, port))
        except OSError as error:
            raise SpecError(VARIABLES["host"].names, host, f"no way leads there: {error.strerror}") from error
        address: str = probe.getsockname()[0]
        return address


def _interfaces() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Every address of this machine with the name of its interface; Python has no other way than to ask the kernel."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as kernel:
        kernel.send(struct.pack("=IHHIIBxxxI", 24, RTM_GETADDR, NLM_F_REQUEST_DUMP, 0, 0, socket.AF_UNSPEC, 0))
        while True:
            data = kernel.recv(1 << 16)
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind == NLMSG_DONE:
                    return
                if kind == RTM_NEWADDR:
                    (index,) = struct.unpack_from("=I", data, 20)
                    attributes = dict(_attributes(data[24:size]))
                    # On a link between two ends, IFA_ADDRESS is the other one's.
                    raw = attributes.get(IFA_LOCAL, attributes.get(IFA_ADDRESS, b""))
                    yield socket.if_indextoname(index), ipaddress.ip_address(raw)
                data = data[(size + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        size, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:size]
        data = data[(size + 3) & ~3 :]
