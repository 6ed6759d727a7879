"""Faults that use up what the target needs: cores and memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from holdfast.chaos import burden
from holdfast.chaos.api import Effect, Fault, Parameter, Target, Values
from holdfast.errors import JobError, SpecError
from holdfast.spec.job_kinds import render_bytes

MOST_PROCESSES = 256
NODE_LIMIT = "limit"
"""As many bytes as the node may have."""


class Burdens(Effect):
    """An effect that is there as long as some processes are: children of ours, among those of the node."""

    def __init__(self, target: Target, values: Values, *, key: str) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        super().__init__(target, values, key=key)

    def burden(self, kind: str, *words: object) -> int:
        """Start one, and wait until it is in its place; its process id."""
        groups = list(self.target.cgroups.values())
        command = [sys.executable, "-I", "-S", burden.__file__, str(os.getpid()), str(len(groups)), *groups]
        started = subprocess.Popen(
            [*command, kind, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **self.target.marks},
            cwd="/",
            start_new_session=True,
        )
        self._started.append(started)
        assert started.stdout is not None, "asked for a pipe"
        with started.stdout as pipe:
            if pipe.readline() != b"here\n":
                raise JobError(f"a process beside {self.target.name} cannot be started: see its message above")
        return started.pid

    def undo(self) -> None:
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait()


class CpuLoad(Burdens):
    def prepare(self) -> None:
        self._share = self.values.number("percent", least=1, most=100) / 100
        cores = _cores(self.target)
        count = self.values.text("processes")
        self._num = self.values.whole("processes", least=1, most=MOST_PROCESSES) if count else len(cores)
        self._cores = cores

    def apply(self) -> str:
        pids = [self.burden("burn", self._share) for _ in range(self._num)]
        for pid in pids:
            os.sched_setaffinity(pid, self._cores)
        where = (
            "in its control group" if self.target.cgroups else f"on its cores, at equal priority: {_list(self._cores)}"
        )
        return f"{self._num} processes use {self._share:.0%} of a core each beside {self.target.name}, {where}"


class MemoryHog(Burdens):
    def prepare(self) -> None:
        limit = self.target.memory_bytes
        if self.values.text("bytes") != NODE_LIMIT:
            self._bytes = self.values.size("bytes")
        elif limit is not None:
            self._bytes = limit
        else:
            raise SpecError("--set bytes", NODE_LIMIT, f"{self.target.name} has none; say how many, as 2Gi")
        self._rate = self.values.size("rate")

    def apply(self) -> str:
        pid = self.burden("hog", self._bytes, self._rate)
        where = "in its control group" if self.target.cgroups else "with its mark"
        size, rate = render_bytes(self._bytes), render_bytes(self._rate)
        return f"a process (pid {pid}) takes {size} beside {self.target.name}, {rate} a second, {where}"


def _cores(target: Target) -> set[int]:
    """Those that the target may use."""
    for process in target.processes:
        with contextlib.suppress(ProcessLookupError):
            return os.sched_getaffinity(process.pid)
    return os.sched_getaffinity(0)


def _list(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


FAMILY = (
    Fault(
        name="cpu-load",
        summary="Processes beside the target's compute without end: in the node's control group, else on its cores.",
        parameters={
            "percent": Parameter("How much of a core each uses.", "90"),
            "processes": Parameter("How many; as many as the target may use cores without it."),
        },
        undo="the processes are killed",
        make=CpuLoad,
    ),
    Fault(
        name="memory-hog",
        summary="A process among the node's takes memory: its control group, or its watchdog, counts it as the node's.",
        parameters={
            "bytes": Parameter(f"How much, as 2Gi; {NODE_LIMIT}: as much as the node may have.", NODE_LIMIT),
            "rate": Parameter("How much of it each second.", "1Gi"),
        },
        undo="the process is killed",
        make=MemoryHog,
    ),
)
