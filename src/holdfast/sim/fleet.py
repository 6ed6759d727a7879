"""Every live worker of the cluster, and what must hold of them whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.sim.trace import Trace


@dataclass(eq=False, slots=True)
class Process:
    """One simulated worker."""

    node: str
    generation: int
    rank: int
    local_rank: int
    pid: int
    lose_peer: Callable[[], None]
    """Called when a peer of its generation is gone before its work was done."""
    alive: bool = True
    stubborn: bool = False
    """Ends for no signal but SIGKILL."""


class Fleet:
    """The live workers by rank."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._live: dict[int, Process] = {}
        self._broken = 0
        self._generations: dict[int, int] = {}

    def next_pid(self) -> int:
        return 1000 + len(self._generations)

    def generation_of(self, pid: int) -> int | None:
        return self._generations.get(pid)

    def start(self, process: Process) -> None:
        other = self._live.get(process.rank)
        if other is not None:
            same = other.generation == process.generation
            law = "two live workers with one rank" if same else "a rank lives in two generations"
            mine, theirs = (f"{it.node} (generation {it.generation})" for it in (process, other))
            self._trace.require(False, f"{law}: rank {process.rank} on {mine} and on {theirs}")
        self._live[process.rank] = process
        self._generations[process.pid] = process.generation

    def end(self, process: Process, *, clean: bool) -> None:
        process.alive = False
        self._trace.require(self._live.pop(process.rank, None) is process, f"rank {process.rank} ended twice")
        if clean or process.generation <= self._broken:
            return
        self._broken = process.generation
        for peer in list(self._live.values()):
            if peer.generation == process.generation:
                peer.lose_peer()

    def is_broken(self, generation: int) -> bool:
        """Whether a generation has lost a worker, so that its others can never finish."""
        return generation <= self._broken

    def live(self) -> list[Process]:
        return [self._live[rank] for rank in sorted(self._live)]
