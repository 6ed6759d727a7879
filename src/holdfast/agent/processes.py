"""Finding and ending the processes below this one.

Each of our processes is a subreaper: what the script leaves behind, even in a session of its own, becomes a child
of the nearest of us that lives, and cannot hide.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from holdfast.spec.job import MARKER

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

KILL_TIMEOUT_S = 20.0
"""A process in uninterruptible sleep cannot be killed; we stop waiting for it after this long."""


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def become_subreaper() -> None:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Have the kernel send us `number` when our parent dies; 0 turns it off."""
    _prctl(PR_SET_PDEATHSIG, number)


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except OSError:
            continue
    return found


def descendants(pid: int, *, keep: Collection[int] = ()) -> list[int]:
    """Every process below `pid`, except those in `keep` and what is below them."""
    found: list[int] = []
    queue = [child for child in children_of(pid) if child not in keep]
    while queue:
        child = queue.pop()
        found.append(child)
        queue += children_of(child)
    return found


def kill_below(*, keep: Collection[int] = (), reaped: dict[int, int] | None = None) -> bool:
    """SIGKILL everything below this process and reap what becomes ours; `reaped` collects the wait statuses.

    Repeats until nothing is left, since a process may fork while we look. False if something would not die.
    """
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        targets = descendants(os.getpid(), keep=keep)
        if not targets:
            return True
        for pid in targets:
            kill(pid, signal.SIGKILL)
        _reap_children(keep, reaped)
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.001)


def signal_groups(pids: Collection[int], number: int) -> None:
    """Signal each of these workers and its children, as a terminal would; wake those that are stopped.

    One that was forked just now may have no group yet.
    """
    for pid in pids:
        for each in (number, signal.SIGCONT):
            try:
                os.killpg(pid, each)
            except ProcessLookupError:
                kill(pid, each)


def kill_marked(marker: str) -> None:
    """SIGKILL every other process whose environment carries `marker`.

    For what no longer has any of us above it: it was started by a process that was, in a session of its own, when
    several of us were killed.
    """
    wanted = f"{MARKER}={marker}".encode()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                kill(int(name), signal.SIGKILL)


def _reap_children(keep: Collection[int], reaped: dict[int, int] | None) -> None:
    for pid in children_of(os.getpid()):
        if pid in keep:
            continue
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
        if done and reaped is not None:
            reaped[done] = status


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
