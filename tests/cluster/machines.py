"""Machines under test: network namespaces with addresses of their own, joined by a cable.

A namespace lives as long as a process in it, and that one ends with the test, however the test ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jobs import Job, start, until

TOOLS = ("ip", "unshare", "nsenter")
INTERFACE = "cable"
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@cache
def obstacle() -> str:
    """Why machines cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, timeout=30, check=False)
    return f"network namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else ""


class Machine:
    """Gone, with all that was started on it, when `stack` is left."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.directory = directory
        self.started: list[Job] = []
        directory.mkdir()
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        stack.callback(self._destroy)
        until(self._is_apart, within_s=30, what="a network namespace of its own")
        self.call("ip", "link", "set", "lo", "up")

    def _is_apart(self) -> bool:
        ours, theirs = (os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", self._holder.pid))
        return ours != theirs

    @property
    def pid(self) -> int:
        """A process in it, which stands for its namespace."""
        return self._holder.pid

    def start(self, command: list[str], *, env: Mapping[str, str], cwd: Path | None = None) -> Job:
        job = start(
            [*self._enter(), *command], directory=self.directory / f"process{len(self.started)}", env=env, cwd=cwd
        )
        self.started.append(job)
        return job

    def call(self, *command: str) -> None:
        subprocess.run([*self._enter(), *command], check=True, timeout=30)

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--net", "--"]

    def plug(self, address: str) -> None:
        self.call("ip", "address", "add", f"{address}/24", "dev", INTERFACE)
        self.switch("up")

    def switch(self, state: str) -> None:
        """The cable up or down; what was on its way is lost, and nobody is told."""
        self.call("ip", "link", "set", INTERFACE, state)

    def _destroy(self) -> None:
        for job in self.started:
            job.destroy()
        self._holder.kill()
        self._holder.communicate()


def connect(one: Machine, other: Machine) -> None:
    """Lay a cable between two machines."""
    ends = [["name", INTERFACE, "netns", str(machine.pid)] for machine in (one, other)]
    subprocess.run(["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]], check=True, timeout=30)
