"""Who listens where: the master, one that may have to take over, and the workers' store."""

from __future__ import annotations

import errno
import socket

from holdfast.core.ids import Address
from holdfast.errors import JobError
from holdfast.spec.job import NodeSpec
from holdfast.spec.reach import is_loopback

LOOPBACK = "127.0.0.1"


def bind_master(spec: NodeSpec) -> socket.socket | None:
    """The master's socket, if this node owns its address and nobody serves there yet; else None, and we dial it."""
    if spec.managed:
        return None
    listener = _listen(spec.host, spec.port)
    if listener is None and spec.single:
        raise JobError(f"--rdzv-endpoint: {spec.host}:{spec.port} is in use, or is not an address of this machine")
    return listener


def bind_deputy(spec: NodeSpec) -> socket.socket | None:
    """A socket for the master, should whoever hosts it be lost; None where that is this node alone, or never is."""
    alone = spec.single and not spec.managed
    return None if alone or spec.never_master else _bind(_reach(spec), 0)


def bind_store(spec: NodeSpec) -> tuple[socket.socket, Address]:
    """A listening socket for the store, kept through all generations, and where others find it.

    An empty host means: the address from which we reach the master.
    """
    host = _reach(spec)
    try:
        listener = _bind(host, spec.store_port)
    except OSError as error:
        name = "--master-port" if spec.store_port else "the workers' store"
        raise JobError(f"{name}: port {spec.store_port} cannot be used: {error.strerror}") from error
    return listener, Address(spec.local_addr or (LOOPBACK if host == LOOPBACK else ""), listener.getsockname()[1])


def _reach(spec: NodeSpec) -> str:
    """The address to listen at for the other nodes of the job: only this machine's own, if they are all on it."""
    if spec.single or is_loopback(spec.host):
        return LOOPBACK
    return "::" if ":" in spec.host else "0.0.0.0"


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
