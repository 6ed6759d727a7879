"""The watchdog for nodes that no control group holds: how much memory their processes have between them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """A process's share of resident memory: what it shares with others counts in parts."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


def enforce(pids: Collection[int], limit_bytes: int) -> bool:
    """Whether processes have more than they may; then the largest is killed, as the kernel would."""
    sizes = {pid: resident_bytes(pid) for pid in pids}
    if sum(sizes.values()) <= limit_bytes:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(max(sizes, key=sizes.__getitem__), signal.SIGKILL)
    return True
