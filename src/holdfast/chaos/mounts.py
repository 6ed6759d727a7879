"""Which mounts there are, and a layer over a directory that has no room."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import JobError

CALL_S = 30.0
ROOM = "size=64k,nr_inodes=64"
"""What the layer has before it is filled: enough for the kernel to make it."""
NO_DISK = ("tmpfs", "ramfs", "devtmpfs", "overlay")


@dataclass(frozen=True, slots=True)
class Mount:
    device: str
    """Major and minor number."""
    place: Path
    kind: str
    source: str


def mounts() -> list[Mount]:
    """In order: what is mounted over another comes after it."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        dash = fields.index("-")
        place = fields[4].encode().decode("unicode_escape")
        found.append(Mount(fields[2], Path(place), fields[dash + 1], fields[dash + 2]))
    return found


def mount_of(path: Path) -> Mount:
    """Where a file lies."""
    real = path.resolve()
    return max((m for m in mounts() if real.is_relative_to(m.place)), key=lambda mount: len(mount.place.parts))


class FullLayer:
    """A layer over a directory: what is there can be read as before, and there is no room for anything new."""

    def __init__(self, directory: Path, *, key: str) -> None:
        self._directory = directory
        self._name = f"holdfast-{key}"
        self._room = Path(tempfile.gettempdir()) / self._name

    def lay(self) -> None:
        self._room.mkdir(mode=0o700)
        _call("mount", "-t", "tmpfs", "-o", f"{ROOM},mode=0700", self._name, str(self._room))
        upper, work = self._room / "upper", self._room / "work"
        upper.mkdir()
        work.mkdir()
        status = self._directory.stat()
        os.chmod(upper, status.st_mode & 0o7777)
        os.chown(upper, status.st_uid, status.st_gid)
        options = f"lowerdir={self._directory},upperdir={upper},workdir={work}"
        _call("mount", "-t", "overlay", "-o", options, self._name, str(self._directory))
        self._fill()

    def _fill(self) -> None:
        with contextlib.suppress(OSError), open(self._room / "full", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with contextlib.suppress(OSError):
            for number in range(1 << 16):
                (self._room / f"full{number}").touch()

    def lift(self) -> None:
        for mount in reversed(mounts()):
            if mount.source == self._name:
                # Lazily: whoever has a file open in it shall not keep it for the others.
                _call("umount", "-l", str(mount.place))
        with contextlib.suppress(FileNotFoundError):
            self._room.rmdir()


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=False)
    if done.returncode:
        raise JobError(f"{' '.join(command)}: {done.stderr.strip()}")
