"""Looking at processes, and signalling them, without ever meeting another one that got their id."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from holdfast.agent.processes import descendants
from holdfast.chaos.api import Process, Target
from holdfast.platforms.local.processes import MARK, marked
from holdfast.spec.job import MARKER


def identify(pid: int) -> Process | None:
    """A process that lives; None if it does not."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else Process(pid, fields[19])


def is_alive(process: Process) -> bool:
    return identify(process.pid) == process


def is_stopped(process: Process) -> bool:
    fields = _stat(process.pid)
    return bool(fields) and fields[19] == process.start and fields[0] == "T"


def parent_of(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def send(process: Process, number: int) -> bool:
    """Signal exactly this process; False if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if identify(process.pid) != process:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def variables_of(pid: int, names: Iterable[str]) -> dict[str, str]:
    """Variables with which a process was started."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"):
            name, _, value = entry.partition("=")
            if name in names:
                found[name] = value
    return found


def marks_of(pids: Iterable[int]) -> dict[str, str]:
    """What marks the processes of a node, looked for on several of them."""
    found: dict[str, str] = {}
    for pid in pids:
        found |= variables_of(pid, (MARK, MARKER))
    return found


def struck(target: Target) -> list[Process]:
    """Those of a target's processes that live now; for a whole node, also those that were started since."""
    if not target.is_whole_node:
        return [process for process in target.processes if is_alive(process)]
    found = [] if target.root is None or not is_alive(target.root) else [target.root.pid]
    found += descendants(found[0]) if found else []
    if mark := target.marks.get(MARK):
        found += [pid for pid in marked(mark) if pid not in found]
    return [process for pid in found if (process := identify(pid)) is not None]


def _stat(pid: int) -> list[str]:
    """The fields after the name: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
