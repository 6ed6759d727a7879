"""Doing something in the network of another process."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.errors import JobError

CLONE_NEWNET = 0x40000000
IP_S = 30.0
"""For one call of ip; longer means that something is wrong with this machine."""

T = TypeVar("T")


def leave_network() -> str:
    """Give this process a network of its own; why that cannot be, or nothing."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return os.strerror(ctypes.get_errno())
    return ""


def in_namespace(pid: int, act: Callable[[], T]) -> T:
    """Call `act` in the network of `pid`. Only a thread enters it, and ends: the rest of us stays where it is."""
    results: list[T] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(fd, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns failed")
            finally:
                os.close(fd)
            results.append(act())
        except BaseException as error:  # noqa: BLE001  it is raised in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=enter, name="holdfast-namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def configure(pid: int, commands: Sequence[str]) -> None:
    """Run commands of `ip` in the network of `pid`."""

    def act() -> None:
        text = "\n".join(commands) + "\n"
        done = subprocess.run(["ip", "-batch", "-"], input=text, capture_output=True, text=True, timeout=IP_S)
        if done.returncode:
            raise JobError(f"ip cannot do what was asked ({'; '.join(commands)}): {done.stderr.strip()}")

    try:
        in_namespace(pid, act)
    except (OSError, subprocess.SubprocessError) as error:
        raise JobError(f"the network of process {pid} cannot be set up: {error}") from error


def listen_in(pid: int, host: str, port: int) -> socket.socket:
    return in_namespace(pid, lambda: socket.create_server((host, port), backlog=1024))


def socket_in(pid: int, family: int) -> socket.socket:
    """A socket that dials in the network of `pid`."""
    return in_namespace(pid, lambda: socket.socket(family, socket.SOCK_STREAM))
