"""A node that is slow: its workers and probes stand still for most of the time, in short turns."""

from __future__ import annotations

import signal
import time

from holdfast.agent.processes import descendants
from holdfast.chaos.api import Effect, Fault, Parameter, Process
from holdfast.chaos.pids import command_line, identify, is_alive, send
from holdfast.errors import JobError

WARM = "agent/warm.py"
"""How the warm interpreter is known, in its command line."""
TURN_S = 0.1
"""Short, so that everything is slow and nothing stands still for long; but so long that on a busy machine, where
whoever stops them wakes up late, they do not get much more than their share."""
LOOK_S = 0.01
"""A probe is over within half a second: one that comes has to be struck from its beginning."""


class Slow(Effect):
    def prepare(self) -> None:
        share = self.values.number("percent", least=1, most=98) / 100
        self._still_s = TURN_S * share
        self.every_s = TURN_S - self._still_s
        self._known: list[Process] = []

    def apply(self) -> str:
        if self.target.agent is None:
            raise JobError(f"{self.target.name} has no agent, and so nothing that could be slow")
        self.tend()
        whom = f"workers and probes of {self.target.node}, below its agent (pid {self.target.agent.pid}),"
        return f"{whom} stand still {self._still_s / TURN_S:.0%} of the time"

    def tend(self) -> None:
        until = time.monotonic() + self._still_s
        stopped = {process for process in self._known if send(process, signal.SIGSTOP)}
        while True:
            self._known = self._struck()
            stopped |= {process for process in self._known if process not in stopped and send(process, signal.SIGSTOP)}
            rest_s = until - time.monotonic()
            if rest_s <= 0:
                break
            time.sleep(min(LOOK_S, rest_s))
        for process in stopped:
            send(process, signal.SIGCONT)

    def undo(self) -> None:
        for process in self._struck():
            send(process, signal.SIGCONT)

    def _struck(self) -> list[Process]:
        """Not the warm interpreter: a node that is slow to start would only make everybody wait."""
        agent = self.target.agent
        if agent is None or not is_alive(agent):
            return []
        pids = [pid for pid in descendants(agent.pid) if not any(word.endswith(WARM) for word in command_line(pid))]
        return [process for pid in pids if (process := identify(pid)) is not None]


FAMILY = (
    Fault(
        name="slow",
        summary="The workers and probes of the node stand still for a part of the time, in turns of 100 ms.",
        parameters={"percent": Parameter("How much of the time.", "90")},
        undo="SIGCONT",
        make=Slow,
    ),
)
