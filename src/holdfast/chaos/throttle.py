"""Holding a target back at a disk: control groups, version 1 (blkio) and 2 (io)."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from holdfast.chaos.api import Memo, Target
from holdfast.chaos.pids import struck
from holdfast.errors import JobError

RATES = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
EMPTY_S = 5.0
"""For processes to have left a group; then it stays, and the error says so."""


class Throttle:
    """With version 1, in a group of its own; with version 2, in the node's group, since a process has one only."""

    def __init__(self, target: Target, *, key: str) -> None:
        self._target = target
        base = Path("/sys/fs/cgroup/blkio")
        self._group = base / f"holdfast-{key}" if (base / "cgroup.procs").exists() else None
        self._node_group = Path(target.cgroups["all"]) if "all" in target.cgroups else None
        if self._group is None and self._node_group is None:
            raise JobError(f"no control group holds back {target.name} at a disk: neither blkio, nor one of its node")

    def look(self) -> Memo:
        """The group of each process now."""
        groups = {str(process.pid): _own_group(process.pid) for process in struck(self._target)}
        return {"groups": groups}

    def close(self, path: Path, *, bytes_per_s: int) -> str:
        """Hold it back at the disk of `path`; which device that is."""
        device = _disk_of(path)
        if self._group is not None:
            self._group.mkdir()
            for name in RATES:
                (self._group / name).write_text(f"{device} {bytes_per_s}")
            for process in struck(self._target):
                _move(process.pid, self._group)
        elif self._node_group is not None:
            for above in (self._node_group.parents[1], self._node_group.parent):
                (above / "cgroup.subtree_control").write_text("+io")
            (self._node_group / "io.max").write_text(f"{device} rbps={bytes_per_s} wbps={bytes_per_s}")
        return device

    def open(self, memo: Memo) -> None:
        if self._group is not None:
            self._leave(self._group, memo["groups"])
        elif self._node_group is not None:
            with contextlib.suppress(FileNotFoundError):
                for line in (self._node_group / "io.max").read_text().splitlines():
                    (self._node_group / "io.max").write_text(f"{line.split()[0]} rbps=max wbps=max")

    def _leave(self, group: Path, homes: dict[str, str]) -> None:
        """Move everybody back; one who came since goes where the first one was."""
        first = next(iter(homes.values()), "/")
        deadline = time.monotonic() + EMPTY_S
        while group.is_dir():
            for pid in (group / "cgroup.procs").read_text().split():
                home = homes.get(pid, first)
                _move(int(pid), group.parent / home.lstrip("/"))
            try:
                group.rmdir()
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise JobError(f"{group} cannot be removed: {error.strerror}") from error
                time.sleep(0.01)


def _move(pid: int, group: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def _own_group(pid: int) -> str:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "blkio" in controllers.split(","):
                return path
    return "/"


def _disk_of(path: Path) -> str:
    """Major and minor number of the whole disk: partitions cannot be held back."""
    device = path.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not place.exists():
        raise JobError(f"{path} lies on no disk that can be held back")
    real = place.resolve()
    return ((real.parent if (real / "partition").exists() else real) / "dev").read_text().strip()
