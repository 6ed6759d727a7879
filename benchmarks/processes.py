"""Questions to /proc about the processes of a job, and their certain end."""

import contextlib
import ctypes
import os
import re
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    parent: int
    state: str
    cpu_s: float
    """User and system time of its threads and of the children it has reaped."""


def snapshot() -> dict[int, Process]:
    """Every process of the machine."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may itself hold spaces and parentheses.
            fields = status.read_text().rpartition(")")[2].split()
            ticks = sum(int(field) for field in fields[11:15])
            process = Process(int(fields[1]), fields[0], ticks / _TICKS_PER_S)
            found[int(status.parent.name)] = process
    return found


def descendants(roots: Iterable[int], processes: dict[int, Process]) -> list[int]:
    """The processes below `roots`, without them, parents first."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found = list(roots)
    num_roots = len(found)
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[num_roots:]


def pss_bytes(pids: Iterable[int]) -> int:
    """Memory in use; a page shared by n processes counts as 1/n for each."""
    total_kib = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            if found := re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE):
                total_kib += int(found[1])
    return total_kib * 1024


def adopt_orphans() -> None:
    """From now on a process whose parents died is a child of this one, so it can be found."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def end(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_all_descendants() -> None:
    """Kill and reap what is left below this process. Needs `adopt_orphans` to miss nothing."""
    while living := descendants([os.getpid()], snapshot()):
        end(living)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores a second Ctrl-C while the first is being obeyed; keep the body bounded."""
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.signal(signum, signal.SIG_IGN) for signum in signals]
    try:
        yield
    finally:
        for signum, handler in zip(signals, before, strict=True):
            signal.signal(signum, handler)
