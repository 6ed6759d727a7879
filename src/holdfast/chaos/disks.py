"""Faults of disks: full, and slow."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from holdfast.chaos.api import Effect, Fault, Memo, Parameter, Target, Values
from holdfast.chaos.load import Burdens
from holdfast.chaos.mounts import NO_DISK, FullLayer, mount_of
from holdfast.chaos.pids import is_alive, struck
from holdfast.chaos.throttle import Throttle
from holdfast.errors import JobError, SpecError
from holdfast.spec.job_kinds import render_bytes

PATH = {"path": Parameter("Which directory; relative to the node's, which it is without it.")}


def directory_of(target: Target, values: Values) -> Path:
    path = Path(target.directory or "/", values.text("path"))
    if not path.is_dir() or not (target.directory or values.text("path")):
        raise SpecError("--set path", str(path), "it must be a directory")
    return path.resolve()


class DiskFull(Effect):
    def prepare(self) -> None:
        self._path = directory_of(self.target, self.values)
        self._layer = FullLayer(self._path, key=self.key)

    def apply(self) -> str:
        for process in self.target.processes:
            if is_alive(process) and not os.path.samefile(f"/proc/{process.pid}/ns/mnt", "/proc/self/ns/mnt"):
                raise JobError(
                    f"{self.target.name} has mounts of its own, in which nothing can be laid over {self._path}"
                )
        self._layer.lay()
        return (
            f"there is no room below {self._path}: what is there can be read, but nothing written, renamed or removed"
        )

    def undo(self) -> None:
        self._layer.lift()


class FileLimit(Effect):
    """By the limit of each process on the size of files; new processes inherit it."""

    def prepare(self) -> None:
        self._bytes = self.values.size("bytes")

    def look(self) -> Memo:
        softs = {str(process.pid): _limit(process.pid)[0] for process in struck(self.target)}
        if not softs:
            raise JobError(f"{self.target.name} is gone")
        return {"softs": softs, "first": next(iter(softs.values()))}

    def apply(self) -> str:
        living = struck(self.target)
        for process in living:
            _, hard = _limit(process.pid)
            bound = self._bytes if hard == resource.RLIM_INFINITY else min(self._bytes, hard)
            _set_limit(process.pid, (bound, hard))
        return (
            f"{len(living)} processes of {self.target.name} cannot write beyond the first {self._bytes} bytes of a file"
        )

    def undo(self) -> None:
        for process in struck(self.target):
            soft = self.memo["softs"].get(str(process.pid), self.memo["first"])
            _set_limit(process.pid, (soft, _limit(process.pid)[1]))


class SlowDisk(Effect):
    def prepare(self) -> None:
        self._bytes_per_s = self.values.size("bytes")
        self._path = directory_of(self.target, self.values)
        _check_disk(self._path)
        self._throttle = Throttle(self.target, key=self.key)

    def look(self) -> Memo:
        return self._throttle.look()

    def apply(self) -> str:
        device = self._throttle.close(self._path, bytes_per_s=self._bytes_per_s)
        rate = render_bytes(self._bytes_per_s)
        return f"{self.target.name} can read and write {rate} a second of device {device}"

    def undo(self) -> None:
        self._throttle.open(self.memo)


class DiskStorm(Burdens):
    def prepare(self) -> None:
        self._path = directory_of(self.target, self.values)
        _check_disk(self._path)
        self._num = self.values.whole("writers", least=1, most=64)

    def apply(self) -> str:
        for _ in range(self._num):
            self.burden("storm", self._path)
        return f"{self._num} processes force writes to the disk of {self._path} without a pause"


def _check_disk(path: Path) -> None:
    if (mount := mount_of(path)).kind in NO_DISK:
        raise JobError(f"{path} lies on no disk: it is {mount.kind}")


def _limit(pid: int) -> tuple[int, int]:
    try:
        return resource.prlimit(pid, resource.RLIMIT_FSIZE)
    except ProcessLookupError:
        return resource.RLIM_INFINITY, resource.RLIM_INFINITY


def _set_limit(pid: int, limit: tuple[int, int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


FAMILY = (
    Fault(
        name="disk-full",
        summary="No room is left below a directory, for anybody who names it; open files, and processes that stand in "
        "it, are spared.",
        parameters=PATH,
        needs_root=True,
        without_root="file-limit",
        undo="the layer without room is lifted off the directory; nothing below it was changed",
        make=DiskFull,
    ),
    Fault(
        name="file-limit",
        summary="Processes of the target cannot write beyond so many bytes of a file: 'too large', not 'no space'.",
        parameters={"bytes": Parameter("How many.", "1")},
        undo="the limits are what they were",
        make=FileLimit,
    ),
    Fault(
        name="slow-disk",
        summary="The target reads and forces writes slowly (a throttle); what it leaves to the kernel is not slower.",
        parameters={"bytes": Parameter("How much a second.", "1Mi"), **PATH},
        needs_root=True,
        without_root="disk-storm",
        undo="the throttle is taken away",
        make=SlowDisk,
    ),
    Fault(
        name="disk-storm",
        summary="Processes force writes to the same disk without a pause: everybody's forced writes wait with theirs.",
        parameters={"writers": Parameter("How many processes.", "4"), **PATH},
        undo="the processes are killed; their files have no names",
        make=DiskStorm,
    ),
)
