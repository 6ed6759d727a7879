"""Watching this node's beacons for ranks that hang; no messages, a few reads of shared memory a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.faults import HANG_MARK
from holdfast.core.progress import Limits, Progress, Verdict, View
from holdfast.observe import beacon
from holdfast.observe.beacon import STACK_SIGNAL

LOOK_S = 0.1
WAITING_PLACES = "/torch/distributed/", "/torch/autograd/graph.py", "/holdfast/sdk/waits.py"
STACK_S = 0.5
"""For a worker to write its stack; one that is stuck in the kernel never does."""
STACK_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Watched:
    """One attached worker."""

    pid: int
    beacon: Path
    stack: Path


class HangWatch:
    """Looks at the workers now and then, and says who hangs."""

    def __init__(
        self,
        limits: Limits,
        *,
        workers: Callable[[], dict[int, Watched]],
        generation: Callable[[], int],
        hung: Callable[[int, str], None],
    ) -> None:
        self._limits = limits
        self._workers = workers
        self._generation = generation
        self._hung = hung
        self._progress = Progress(limits)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        workers = self._workers()
        views = {rank: view for rank, worker in workers.items() if (view := self._view(worker)) is not None}
        if len(views) < len(workers) and any(view.phase == "stepping" for view in views.values()):
            # Until all have made a step, we do not know who is behind.
            return
        verdict = self._progress.judge(views, now=time.monotonic(), generation=self._generation())
        stacks = {rank: "" if views[rank].stopped else await self._stack(workers[rank]) for rank in verdict.late}
        left_behind = [rank for rank in verdict.late if self._progress.is_left_behind(views[rank])]
        for rank in {*left_behind, *_blamed(verdict, views, stacks, alone=len(workers) == 1)}:
            view = views[rank]
            reason = _describe(view, self._progress.limit_s(view))
            if rank in left_behind:
                reason = f"stuck at step {view.step} in generation {view.generation}, which is over"
            self._hung(workers[rank].pid, f"{HANG_MARK}{reason}\n{stacks[rank]}".rstrip())

    def _view(self, worker: Watched) -> View | None:
        seen = beacon.read(worker.beacon)
        if seen is None:
            return None
        return View(
            seen.step, seen.phase.name.lower(), seen.since_s, _is_stopped(worker.pid), seen.generation, seen.limit_s
        )

    async def _stack(self, worker: Watched) -> str:
        """Its Python stack, or nothing if it does not answer."""
        before, text = "", ""
        with contextlib.suppress(OSError):
            os.truncate(worker.stack, 0)
            os.kill(worker.pid, STACK_SIGNAL)
            deadline = time.monotonic() + STACK_S
            while (not text or text != before) and time.monotonic() < deadline:
                await asyncio.sleep(STACK_POLL_S)
                before, text = text, worker.stack.read_text(errors="replace")
            os.truncate(worker.stack, 0)
        return text


def _blamed(verdict: Verdict, views: dict[int, View], stacks: dict[int, str], *, alone: bool) -> list[int]:
    """Those of the late who are not waiting for somebody else themselves."""
    waiting = {rank for rank, stack in stacks.items() if _waits_for_others(stack)}
    blamed = [rank for rank in verdict.late if rank not in waiting]
    if any(view.phase == "stepping" for view in views.values()):
        # One is enough: they all start again.
        return sorted(blamed or verdict.late, key=lambda rank: (not views[rank].stopped, not stacks[rank], rank))[:1]
    held_up = bool(waiting) or verdict.waited_for
    return [rank for rank in blamed if views[rank].stopped or alone or held_up]


def _describe(view: View, limit_s: float) -> str:
    place = f"at step {view.step} for more than {limit_s:.2f} s"
    if view.stopped:
        return f"stopped {place}"
    return f"no further step {place}" if view.phase == "stepping" else f"did not get on {place} while its peers waited"


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def _waits_for_others(stack: str) -> bool:
    """Whether the newest frame of the main thread is in a collective, or in a backward pass, which waits for some."""
    frames = [line for line in stack.splitlines() if line.startswith("  File")]
    return bool(frames) and any(place in frames[0] for place in WAITING_PLACES)


def kill_worker(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
