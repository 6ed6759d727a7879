"""Who listens where: whether this node hosts the master, and where its workers' store would be."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.channel import Channel
from holdfast.agent.hosting import HostedMaster
from holdfast.core.ids import Address
from holdfast.errors import JobError
from holdfast.spec.job import NodeSpec
from holdfast.spec.load import is_loopback

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Hosting:
    hosted: HostedMaster
    address: Address


def host_master(
    spec: NodeSpec,
    *,
    nonce: str,
    journal: Path,
    channel: Channel | None,
    on_death: Callable[[str], None],
    on_ruin: Callable[[JobError], None],
) -> Hosting | None:
    """The master, if this node owns its address and nobody serves there yet; else None, and we dial it."""
    if spec.managed:
        return None
    listener = _listen(spec.host, spec.port)
    if listener is None and spec.single:
        raise JobError(f"--rdzv-endpoint: {spec.host}:{spec.port} is in use, or is not an address of this machine")
    if listener is None:
        return None
    hosted = HostedMaster(
        listener,
        rules=spec.rules,
        journal=journal,
        sole_nonce=nonce if spec.single else None,
        token=spec.token,
        tls=None if channel is None else channel.serving(),
        on_death=on_death,
        on_ruin=on_ruin,
    )
    return Hosting(hosted, Address(spec.host, listener.getsockname()[1]))


def bind_store(spec: NodeSpec) -> tuple[socket.socket, Address]:
    """A listening socket for the store, kept through all generations, and where others find it.

    An empty host means: the address from which we reach the master.
    """
    alone = spec.single or is_loopback(spec.host)
    host = LOOPBACK if alone else ("::" if ":" in spec.host else "0.0.0.0")
    try:
        listener = _bind(host, spec.store_port)
    except OSError as error:
        name = "--master-port" if spec.store_port else "the workers' store"
        raise JobError(f"{name}: port {spec.store_port} cannot be used: {error.strerror}") from error
    return listener, Address(spec.local_addr or (LOOPBACK if alone else ""), listener.getsockname()[1])


def _listen(host: str, port: int) -> socket.socket | None:
    """A listener on host:port; None if the address is another machine's, or is served here already."""
    try:
        return _bind(host, port)
    except socket.gaierror as error:
        raise JobError(f"--rdzv-endpoint: the host {host!r} is unknown: {error.strerror}") from error
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return None
        raise JobError(f"--rdzv-endpoint: {host}:{port} cannot be used: {error.strerror}") from error


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
