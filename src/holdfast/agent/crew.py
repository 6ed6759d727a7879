"""The processes of this node: started, invited, watched, and told of to the core."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.agent import requests
from holdfast.agent.attachments import Attachments
from holdfast.agent.console import Console
from holdfast.agent.hangs import HangWatch, Watched, kill_worker
from holdfast.agent.interpreter import Died, Interpreter
from holdfast.agent.interpreter import Event as InterpreterEvent
from holdfast.agent.launcher import Launcher
from holdfast.agent.logs import read_error
from holdfast.agent.pace import PaceWatch
from holdfast.agent.seats import Seats
from holdfast.core import workers as core
from holdfast.core.budget import Budget
from holdfast.core.faults import HANG_MARK
from holdfast.core.ids import Placement, Resumption, World
from holdfast.core.progress import Limits
from holdfast.observe import beacon
from holdfast.spec.job import NodeSpec
from holdfast.wire.worker import (
    AtLoop,
    Attach,
    Committed,
    Faulted,
    FromWorker,
    Heeded,
    Join,
    Notice,
    Raised,
    Resumed,
    Stranded,
    Stuck,
)

STANDBY_DELAY_S = 1.0
"""A standby is not urgent, and must not take time from a start or a repair."""
MAX_STANDBYS_STARTED = 100
STANDBY_WINDOW_S = 3600.0
VERDICT_MARGIN_S = 120.0
"""The master waits for another node as long as its rules say, then has the workers stopped; one that has heard nothing
for so much longer ends by itself."""


def verdict_s(join_timeout_s: float) -> float | None:
    """How long a worker waits for the world after a fault; None for as long as it takes."""
    return None if math.isinf(join_timeout_s) else join_timeout_s + VERDICT_MARGIN_S


class Crew:
    """Turns the core's decisions about workers into processes, and what happens to those into events."""

    def __init__(
        self,
        spec: NodeSpec,
        *,
        console: Console,
        interpreter: Interpreter,
        logs: Path,
        store: socket.socket,
        put: Callable[[core.Event], None],
    ) -> None:
        self._spec = spec
        self._console = console
        self._interpreter = interpreter
        self._store = store
        self._put = put
        self._launcher = Launcher(spec, console=console, interpreter=interpreter, logs=logs)
        self._attachments = Attachments(self._launcher.agent_socket, self._note_worker)
        self._seats = Seats(spec.num_workers)
        self._hangs = HangWatch(
            Limits(spec.hang_floor_s, spec.hang_ceiling_s),
            workers=self._watched,
            generation=lambda: self._generation,
            hung=self._note_hang,
        )
        self.pace = PaceWatch(
            workers=self._watched, generation=lambda: self._generation, tell=lambda pace: put(core.Paced(pace))
        )
        self._generation = 0
        """The newest world that workers were invited to."""
        self._verdicts: dict[int, str] = {}
        """Why we killed a worker, until its end is reported."""
        self._launch: core.Launch | None = None
        self._standbys_for: tuple[World, Placement] | None = None
        self._num_standbys = spec.standby
        self._asked_for: set[int] = set()
        """Slots of standbys that were asked for and have not started yet."""
        self._awaited = 0
        self._has_torch = True
        self._standby_budget = Budget(MAX_STANDBYS_STARTED, window_s=STANDBY_WINDOW_S)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        await self._attachments.open()
        self._interpreter.watch()
        self._tasks += [asyncio.create_task(watch.run()) for watch in (self._hangs, self.pace)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._attachments.close()
        await self._interpreter.stop()

    # --- what the core decides ----------------------------------------------------------------------------------

    def launch(self, action: core.Launch) -> None:
        """Start these workers now, or as soon as the interpreter is warm; a standby takes a rank at once."""
        self._launch = action
        self._standbys_for, self._num_standbys = (action.world, action.placement), self._spec.standby
        if not action.world.repairs:
            for parked in self._seats.parked:
                kill_worker(parked)
        rest: list[int] = []
        for local_rank in action.local_ranks:
            pid = self._seats.promote(local_rank) if action.world.repairs else None
            if pid is None:
                rest.append(local_rank)
                continue
            self._put(core.WorkerStarted(local_rank, pid))
            self._put(core.WorkerAttached(pid))
        self._fork_soon(replace(action, local_ranks=tuple(rest)))
        self._start_standbys_soon()

    def prepare(self, world: World) -> None:
        """Have processes wait at their loop, one for each rank that this node would have."""
        spec = self._spec
        self._standbys_for = (world, Placement("", 0, 0, spec.num_workers))
        self._num_standbys = spec.num_workers + spec.standby
        self._start_standbys()

    def invite(self, action: core.Invite) -> None:
        world, placement = action.world, action.placement
        self._generation = max(self._generation, world.generation)
        join = Join(
            world.generation,
            placement.first_rank + action.local_rank,
            action.local_rank,
            world.size,
            world.store.host,
            world.store.port,
            not world.repairs,
            verdict_s(self._spec.rules.join_timeout_s),
            world.dumps,
        )
        self._attachments.send(action.pid, join)

    def give_notice(self, action: core.GiveNotice) -> None:
        self._attachments.send(action.pid, Notice(action.patience_s))

    def forward(self, number: int) -> None:
        self._interpreter.signal(number)

    def sweep(self) -> None:
        self._launch = self._standbys_for = None
        self._awaited = 0
        self._interpreter.sweep()

    def _fork_soon(self, action: core.Launch) -> None:
        if self._interpreter.ready.is_set():
            self._fork(action)
            return
        waiting = asyncio.create_task(self._fork_when_warm(action))
        self._tasks = [task for task in self._tasks if not task.done()] + [waiting]

    async def _fork_when_warm(self, action: core.Launch) -> None:
        await self._interpreter.ready.wait()
        if self._launch is not None and self._launch.world.generation >= action.world.generation:
            self._fork(action)

    def _fork(self, action: core.Launch) -> None:
        self._awaited += len(action.local_ranks)
        try:
            self._launcher.launch(action, self._store if self._has_torch else None)
        except OSError as error:
            text = f"{error.filename or 'launch'}: {error.strerror}"
            self._put(core.LaunchFailed(action.world.generation, text))

    def _start_standbys_soon(self) -> None:
        if self._num_standbys:
            asyncio.get_running_loop().call_later(STANDBY_DELAY_S, self._start_standbys)

    def _start_standbys(self) -> None:
        loop = asyncio.get_running_loop()
        if self._standbys_for is None or not self._interpreter.ready.is_set():
            return
        for slot in self._seats.free_standby_slots(self._num_standbys):
            if slot not in self._asked_for and self._standby_budget.spend(now=loop.time()):
                self._asked_for.add(slot)
                self._launcher.start_standby(*self._standbys_for, slot)

    # --- what happens -------------------------------------------------------------------------------------------

    def on_interpreter(self, event: InterpreterEvent) -> None:
        match event:
            case requests.Ready():
                self._has_torch = event.has_torch or bool(event.cold_reason)
                self._start_standbys_soon()
                if event.cold_reason not in ("", requests.ASKED_FOR):
                    self._console.say(f"workers are started cold: {event.cold_reason}")
            case requests.Started():
                self._note_start(event)
            case requests.Exited():
                self._note_exit(event)
            case requests.StoreExited():
                if event.code != requests.NO_TORCH:
                    self._put(core.StoreDied(event.generation))
            case requests.Swept():
                self._seats.clear()
                self._asked_for.clear()
                self._put(core.Parked(0))
                if not event.clean:
                    self._console.say("a process did not die of SIGKILL and is left behind", level="error")
                self._put(core.Swept())
            case Died():
                self._asked_for.clear()
                text = f"the warm interpreter ended {event.reason}"
                self._console.say(f"{text}; a new one is being warmed", level="warning")
                if self._awaited > 0 and self._launch is not None:
                    self._awaited = 0
                    self._put(core.LaunchFailed(self._launch.world.generation, text))

    def _note_start(self, event: requests.Started) -> None:
        self._seats.seat(event.pid, event.local_rank)
        self._asked_for.discard(event.local_rank)
        if event.local_rank < self._spec.num_workers:
            self._awaited -= 1
            self._put(core.WorkerStarted(event.local_rank, event.pid))
            if event.pid in self._seats.attached:
                self._put(core.WorkerAttached(event.pid))
        elif event.pid in self._seats.parked:
            self._put(core.Parked(len(self._seats.parked)))

    def _note_exit(self, event: requests.Exited) -> None:
        local_rank, slot = self._seats.leave(event.pid)
        verdict = self._verdicts.pop(event.pid, "")
        if local_rank is None:
            # A standby: nobody misses it, but another one should be ready.
            self._put(core.Parked(len(self._seats.parked)))
            self._start_standbys_soon()
            return
        code = event.code if event.code >= 0 else None
        number = -event.code if event.code < 0 else None
        error, step = verdict, None
        if event.code != 0:
            restarts = self._launch.world.restart_count if self._launch is not None else 0
            error = verdict or read_error(self._launcher.error_file(restarts, slot))
            seen = beacon.read(self._launcher.beacon(slot))
            step = seen.step if seen is not None else None
        self._put(core.WorkerExited(local_rank, event.pid, code, number, error, step))

    def _note_worker(self, pid: int, message: FromWorker) -> None:
        """What the SDK in a worker says."""
        match message:
            case Attach():
                self._seats.attached.add(pid)
                if pid in self._seats.local_ranks:
                    self._put(core.WorkerAttached(pid))
            case AtLoop():
                self._seats.park(pid)
                self._put(core.Parked(len(self._seats.parked)))
            case Faulted():
                self._put(core.StepFailed(pid, message.generation, message.step, message.kind, message.error))
            case Raised():
                self._put(core.WorkerRaised(pid))
            case Committed():
                self._put(core.StepCommitted(pid, message.generation, message.timings_ms, message.saves))
            case Stuck():
                reason = f"stuck in a collective of generation {message.generation}, which is over"
                self._note_hang(pid, f"{HANG_MARK}{reason}\n{message.stack}")
            case Heeded():
                self._put(core.NoticeHeeded(pid))
            case Stranded():
                self._put(core.StateLost(message.generation))
            case Resumed():
                self._put(core.StateSought(Resumption(message.generation, message.step, message.verdict)))

    # --- hangs --------------------------------------------------------------------------------------------------

    def _watched(self) -> dict[int, Watched]:
        seats, placement = self._seats, self._launch.placement if self._launch is not None else None
        if placement is None or self._launch is None:
            return {}
        found: dict[int, Watched] = {}
        for pid, local_rank in seats.local_ranks.items():
            if pid in seats.attached or self._spec.hang_asked:
                slot = seats.slots[pid]
                error_file = self._launcher.error_file(self._launch.world.restart_count, slot)
                stack = error_file.with_name(error_file.name + ".crash")
                found[placement.first_rank + local_rank] = Watched(pid, self._launcher.beacon(slot), stack)
        return found

    def _note_hang(self, pid: int, reason: str) -> None:
        self._verdicts[pid] = reason
        kill_worker(pid)
