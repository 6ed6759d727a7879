"""All the processes of a node, wherever they hide."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from holdfast.agent.processes import descendants, kill

MARK = "HOLDFAST_NODE"
"""Variable that every process of a node inherits; its value is the job's id and the node's name."""
KILL_S = 20.0
"""A process in uninterruptible sleep cannot be killed; we stop waiting for it after this long."""


def marked(value: str) -> list[int]:
    """Processes that carry the mark of a node, and live."""
    wanted = f"{MARK}={value}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
            except OSError:
                continue
    return found


def kill_node(pid: int, mark: str) -> bool:
    """SIGKILL all of a node, whose first process is `pid`; False if something would not die."""
    deadline = time.monotonic() + KILL_S
    killed: set[int] = set()
    while True:
        # All at once: one that were left would start others, or end them in good order.
        targets = {pid, *descendants(pid), *marked(mark)} if _is_alive(pid) else set(marked(mark))
        # One that is dying has lost its mark, but not yet its sockets.
        if not targets and not any(map(_is_alive, killed)):
            return True
        for target in targets:
            kill(target, signal.SIGKILL)
        killed |= targets
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
