"""Faults of processes: killed, stopped, and probes that never come to their result."""

from __future__ import annotations

import signal
import time

from holdfast.agent.processes import descendants
from holdfast.chaos.api import Effect, Fault, Parameter
from holdfast.chaos.pids import command_line, identify, is_alive, is_stopped, send, struck
from holdfast.errors import JobError, SpecError

STOP_S = 10.0
"""For all processes of a target to be gone, or to stand still; one in uninterruptible sleep does neither."""
LOOK_S = 0.002
PROBE = "holdfast.agent.probe"
"""How the probe of a node's check is known, in its command line."""


class Kill(Effect):
    def prepare(self) -> None:
        given = self.values.text("signal")
        number = getattr(signal, "SIG" + given.upper().removeprefix("SIG"), None)
        if not isinstance(number, signal.Signals):
            raise SpecError("--set signal", given, "it must be the name of a signal, as KILL or HUP")
        self._number = number

    def apply(self) -> str:
        number, name = self._number, self._number.name
        if number is not signal.SIGKILL:
            # As a platform or a terminal would: whoever is first passes it on.
            first = self.target.processes[0]
            if not send(first, number):
                raise JobError(f"{self.target.name} is gone already")
            return f"{name} to {self.target.name} (pid {first.pid})"
        killed: set[int] = set()
        deadline = time.monotonic() + STOP_S
        while living := struck(self.target):
            # All at once: one that were left would start others, or end them in good order.
            killed |= {process.pid for process in living if send(process, number)}
            if time.monotonic() >= deadline:
                raise JobError(f"{self.target.name} does not die: {living[0].pid}")
            time.sleep(LOOK_S)
        if not killed:
            raise JobError(f"{self.target.name} is gone already")
        return f"{name} to {self.target.name} ({_list(killed)})"


class Stop(Effect):
    def apply(self) -> str:
        deadline = time.monotonic() + STOP_S
        while moving := [process for process in struck(self.target) if not is_stopped(process)]:
            for process in moving:
                send(process, signal.SIGSTOP)
            if time.monotonic() >= deadline:
                raise JobError(f"{self.target.name} does not stand still: {moving[0].pid}")
            time.sleep(LOOK_S)
        stopped = [process.pid for process in struck(self.target)]
        if not stopped:
            raise JobError(f"{self.target.name} is gone already")
        return f"SIGSTOP to {self.target.name} ({_list(stopped)})"

    def undo(self) -> None:
        # The first ones last: whoever watches the others shall not find them standing still.
        for process in reversed(struck(self.target)):
            send(process, signal.SIGCONT)


class KillProbes(Effect):
    every_s = 0.02

    def apply(self) -> str:
        if self.target.agent is None:
            raise JobError(f"{self.target.name} has no agent, and so no probes")
        self.tend()
        return f"every probe below the agent of {self.target.node} (pid {self.target.agent.pid}) is killed as it comes"

    def tend(self) -> None:
        agent = self.target.agent
        if agent is None or not is_alive(agent):
            return
        for pid in descendants(agent.pid):
            if PROBE in command_line(pid) and (probe := identify(pid)) is not None:
                send(probe, signal.SIGKILL)


def _list(pids: set[int] | list[int]) -> str:
    numbers = ", ".join(map(str, sorted(pids)))
    return f"pid {numbers}" if len(pids) == 1 else f"{len(pids)} processes: {numbers}"


FAMILY = (
    Fault(
        name="kill",
        summary="Kills the target: a worker (rank:N), an agent, the master, or everything on a node at once.",
        parameters={
            "signal": Parameter("Another signal; only the target's first process gets it, as from a platform.", "KILL")
        },
        undo="",
        make=Kill,
    ),
    Fault(
        name="stop",
        summary="Stops the target (SIGSTOP): it hangs, and its connections stay open.",
        undo="SIGCONT",
        make=Stop,
    ),
    Fault(
        name="kill-probes",
        summary="Kills the probes of the node's checks, as they come.",
        undo="no more of them are killed",
        make=KillProbes,
    ),
)
