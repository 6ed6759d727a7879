"""Which machine this is, and whether a process of it is gone for certain."""

from __future__ import annotations

import asyncio
import socket
from functools import cache
from pathlib import Path


@cache
def machine_id() -> str:
    """Equal for two processes that see the same process ids: one boot, one process-id namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


@cache
def computer_id() -> str:
    """Equal for two processes that share a machine as others see it: one boot, one network.

    Not its name: machines may have the same one. Containers that have their own network count for machines.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return socket.gethostname()


async def is_dead(pid: int, *, within_s: float = 0.25) -> bool:
    """Whether `pid` has ended, or ends within a moment: its sockets close a little before it does."""
    for _ in range(int(within_s / 0.01)):
        if _has_ended(pid):
            return True
        await asyncio.sleep(0.01)
    return _has_ended(pid)


def _has_ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
