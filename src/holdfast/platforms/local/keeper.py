"""A process that outlives the submitter by a moment.

It holds the network in which the nodes meet, and when the submitter is gone, however it went, kills what is left in
the control groups and removes them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import JobError
from holdfast.platforms.local.cgroups import remove_group
from holdfast.platforms.local.namespaces import leave_network

DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Keeper:
    """A fork of this process, which should have one thread at this time."""

    def __init__(self, *, network: bool, groups: Sequence[Path]) -> None:
        hears, self._line = os.pipe()
        told, tells = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._line)
            _keep(hears, tells, network=network, groups=groups)
        os.close(hears)
        os.close(tells)
        with open(told, "rb") as answer:
            if (word := answer.read()) != b"ready":
                self.close()
                raise JobError(f"no network for the nodes can be made: {word.decode()}; see platform.network")

    def close(self) -> None:
        """Let it clean up, and wait until it has."""
        os.close(self._line)
        os.waitpid(self.pid, 0)


def _keep(hears: int, tells: int, *, network: bool, groups: Sequence[Path]) -> None:
    try:
        os.setsid()
        for number in DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        problem = leave_network() if network else ""
        os.write(tells, problem.encode() or b"ready")
        os.close(tells)
        while not problem and os.read(hears, 4096):
            pass
        for group in groups:
            remove_group(group)
    finally:
        os._exit(0)
