"""A pipe that ties workers to us: when the last of our processes is gone, the kernel kills them.

Guard, agent and warm interpreter hold the writing end. Each worker holds the reading end, set to raise SIGKILL for
its whole process group when the pipe ends. No process of ours has to be left to do it.
"""

from __future__ import annotations

import fcntl
import os
import signal
from dataclasses import dataclass

FD_FLOOR = 100
"""Our descriptors in the script's process lie far above those that a script would look at."""


@dataclass(frozen=True, slots=True)
class Lifeline:
    reader: int
    writer: int

    @classmethod
    def open(cls) -> Lifeline:
        return cls(*os.pipe())

    def tie(self) -> None:
        """Tie this process, the leader of its group, to the pipe; it keeps one descriptor for that."""
        # A description of its own: the one we inherited is shared with every other worker, and has one owner.
        own = os.open(f"/proc/self/fd/{self.reader}", os.O_RDONLY | os.O_NONBLOCK)
        high = fcntl.fcntl(own, fcntl.F_DUPFD, FD_FLOOR)
        for fd in (own, self.reader):
            os.close(fd)
        fcntl.fcntl(high, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(high, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(high, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        # Only now: if all of us are gone by then, this is the end of the pipe, and of this process.
        os.close(self.writer)
        os.set_inheritable(high, True)
