"""The directory in which a scheduler keeps what the one after it needs: one scheduler has it at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from holdfast.errors import SpecError
from holdfast.spec.cluster import VARIABLES

JOURNAL = "scheduler.db"
LOCK = "scheduler.lock"


class Custody:
    """Holds a directory from here to the end of the process, whichever end that is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = self._lock()

    @property
    def journal(self) -> Path:
        return self._directory / JOURNAL

    def store_port(self) -> int:
        """Where the store of the last scheduler was: whoever was told so may still look for it there. 0: nowhere."""
        with contextlib.suppress(ValueError):
            return int(os.pread(self._fd, 16, 0))
        return 0

    def keep_store_port(self, port: int) -> None:
        # As long as any other, so that one write makes it whole.
        try:
            os.pwrite(self._fd, b"%05d\n" % port, 0)
        except OSError as error:
            raise self._refuse(f"no state can be kept there: {error.strerror}") from error

    def clear(self) -> None:
        """The cluster has ended: nobody needs any of it."""
        for leftover in self._directory.glob(f"{JOURNAL}*"):
            leftover.unlink(missing_ok=True)
        (self._directory / LOCK).unlink(missing_ok=True)

    def _lock(self) -> int:
        path = self._directory / LOCK
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise self._refuse("a scheduler that runs keeps its state there") from error
            except OSError as error:
                raise self._refuse(f"no state can be kept there: {error.strerror}") from error
            # One that has just ended may have taken the file away in between.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            os.close(fd)

    def _refuse(self, why: str) -> SpecError:
        return SpecError(VARIABLES["recovery_path"].names, str(self._directory), why)
