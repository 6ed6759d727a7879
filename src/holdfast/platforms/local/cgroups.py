"""Limits that the kernel holds nodes to: control groups, version 1 and 2.

The groups of a job are named after its guard, `holdfast.PID.START`: so whoever finds groups of a guard that is gone
may remove them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import JobError

PREFIX = "holdfast."
PERIOD_US = 100_000
REMOVE_S = 5.0
"""For killed processes to leave a group; one that cannot be killed keeps it, and the next job tries again."""
CONTROLLERS = ("memory", "cpu")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made: one directory by controller (version 1), or one for all (version 2)."""

    version: int
    bases: dict[str, Path]


def find_hierarchy(proc: Path = Path("/proc/self")) -> Hierarchy | None:
    """The hierarchy of this machine that limits memory; None if there is none, or it is not ours to write."""
    mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    own = dict(_own_paths((proc / "cgroup").read_text()))
    old: dict[str, Path] = {}
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        mount = Path(fields[4])
        if kind == "cgroup2" and set(CONTROLLERS) <= set(_words(mount / "cgroup.controllers")):
            return Hierarchy(2, {"all": mount}) if os.access(mount, os.W_OK) else None
        for controller in CONTROLLERS:
            if kind == "cgroup" and controller in options:
                inner = mount / own.get(controller, "").lstrip("/")
                old[controller] = inner if inner.is_dir() else mount
    if "memory" not in old or not all(os.access(base, os.W_OK) for base in old.values()):
        return None
    return Hierarchy(1, old)


def _own_paths(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


class Cgroups:
    """The groups of one job."""

    def __init__(self, hierarchy: Hierarchy, name: str) -> None:
        self._hierarchy = hierarchy
        self.roots = {controller: base / name for controller, base in hierarchy.bases.items()}

    def open(self) -> None:
        try:
            for root in self.roots.values():
                root.mkdir(exist_ok=True)
            if self._hierarchy.version == 2:
                enable = " ".join(f"+{controller}" for controller in CONTROLLERS)
                for directory in (self._hierarchy.bases["all"], self.roots["all"]):
                    (directory / "cgroup.subtree_control").write_text(enable)
        except OSError as error:
            raise JobError(f"no control group can be made: {error}") from error

    def make(self, node: str, *, cpu: float | None, memory_bytes: int | None) -> dict[str, str]:
        """The groups of a node, by controller, with its limits set."""
        paths = {controller: root / node for controller, root in self.roots.items()}
        for path in paths.values():
            path.mkdir(exist_ok=True)
        write = self._write_v2 if self._hierarchy.version == 2 else self._write_v1
        write(paths, cpu, memory_bytes)
        return {controller: str(path) for controller, path in paths.items()}

    @staticmethod
    def _write_v1(paths: dict[str, Path], cpu: float | None, memory_bytes: int | None) -> None:
        if memory_bytes is not None:
            (paths["memory"] / "memory.limit_in_bytes").write_text(str(memory_bytes))
            with contextlib.suppress(OSError):
                # Not there where the kernel does not count swap.
                (paths["memory"] / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
        if cpu is not None and "cpu" in paths:
            (paths["cpu"] / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (paths["cpu"] / "cpu.cfs_quota_us").write_text(str(int(cpu * PERIOD_US)))

    @staticmethod
    def _write_v2(paths: dict[str, Path], cpu: float | None, memory_bytes: int | None) -> None:
        group = paths["all"]
        if memory_bytes is not None:
            (group / "memory.max").write_text(str(memory_bytes))
            with contextlib.suppress(OSError):
                (group / "memory.swap.max").write_text("0")
        if cpu is not None:
            (group / "cpu.max").write_text(f"{int(cpu * PERIOD_US)} {PERIOD_US}")

    def num_kills(self, node: str) -> int:
        """How often the kernel has killed a process of the node because of its limit."""
        root, file = ("all", "memory.events") if self._hierarchy.version == 2 else ("memory", "memory.oom_control")
        words = _words(self.roots[root] / node / file)
        counts = dict(zip(words[::2], words[1::2], strict=False))
        return int(counts.get("oom_kill", 0))

    def pids(self, node: str) -> list[int]:
        return [int(pid) for root in self.roots.values() for pid in _words(root / node / "cgroup.procs")]

    def remove(self, node: str) -> None:
        for root in self.roots.values():
            remove_group(root / node)

    def close(self) -> None:
        for root in self.roots.values():
            remove_group(root)


def remove_group(group: Path) -> None:
    """Kill what is in a group and below, and remove them."""
    deadline = time.monotonic() + REMOVE_S
    while group.is_dir():
        # Somebody else may remove the same.
        with contextlib.suppress(FileNotFoundError):
            for child in [entry for entry in group.iterdir() if entry.is_dir()]:
                remove_group(child)
        for pid in _words(group / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)


def group_name(pid: int) -> str:
    return f"{PREFIX}{pid}.{_start_of(pid)}"


def remove_stale(hierarchy: Hierarchy) -> None:
    """Remove the groups of jobs whose guards, and everybody who would have removed them, were killed."""
    for base in hierarchy.bases.values():
        for group in base.glob(f"{PREFIX}*.*"):
            pid, _, start = group.name.removeprefix(PREFIX).partition(".")
            if pid.isdecimal() and _start_of(int(pid)) != start:
                remove_group(group)


def _start_of(pid: int) -> str:
    """When a process began, which tells it from another one with its id; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
