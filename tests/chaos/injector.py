"""`python injector.py FAULT PID DIRECTORY NAME=VALUE...`: injects a fault, says so, and waits to be killed."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace

from holdfast.chaos.api import Target
from holdfast.chaos.injection import inject
from holdfast.chaos.pids import identify
from holdfast.chaos.targets import target_of


def agent_target(pid: int, directory: str) -> Target:
    """A process as if it were the agent of a node."""
    return replace(target_of(pid, directory=directory), agent=identify(pid))


if __name__ == "__main__":
    fault, pid, directory, *settings = sys.argv[1:]
    injection = inject(
        fault,
        agent_target(int(pid), directory),
        parameters=dict(setting.split("=", 1) for setting in settings),
    )
    sys.stdout.write("injected\n")
    sys.stdout.flush()
    signal.pause()
