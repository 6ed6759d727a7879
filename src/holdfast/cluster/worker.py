"""A worker of a self-forming cluster: it is its own node, and a thread in it speaks to the scheduler."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import os
import random
import threading
import time
import traceback
from collections.abc import Callable

from holdfast.agent.channel import Channel
from holdfast.agent.link import Note, Waited
from holdfast.cluster.dialling import make_link
from holdfast.cluster.exits import ExitWatch
from holdfast.cluster.reminders import with_reminders
from holdfast.cluster.rules import rules_of
from holdfast.cluster.voice import Voice
from holdfast.core import workers as core
from holdfast.core.faults import HANG_MARK
from holdfast.core.ids import Placement, Resumption, World
from holdfast.errors import HoldfastError, JobError
from holdfast.sdk.unguarded import has_lost_peer
from holdfast.spec.cluster import ClusterSpec
from holdfast.wire.messages import Happened
from holdfast.wire.worker import Committed, Faulted, Join, Message, Resumed, Stranded, Stuck

VERDICT_S = 120.0
"""From a fault to its consequence, which is the end where recovery is off, beside the time after which a silent node is
lost; then this worker ends by itself."""
LEAVE_S = 30.0
"""For the news of this worker's end to reach the scheduler, where recovery is off."""
BLAME_S = 5.0
"""The same of a bad end: without it the closed connection tells, but not why."""
OUTSIDE = -1
"""In place of the number of a step."""

PATIENCE_S = 1.0
"""A person is told of an end that takes longer."""


def verdict_s(spec: ClusterSpec) -> float | None:
    """Whoever may be replaced is waited for as long as the scheduler does."""
    if spec.recovery:
        return None
    return VERDICT_S + (spec.node_timeout_s if spec.node_timeout_s < math.inf else 0.0)


def invitation(world: World, placement: Placement, *, verdict_s: float | None) -> Join:
    """To a world, for the one worker of a node."""
    machines = [p.machine for p in world.placements if p.first_rank < placement.first_rank]
    return Join(
        world.generation,
        placement.first_rank,
        machines.count(placement.machine),
        world.size,
        world.store.host,
        world.store.port,
        not world.repairs,
        verdict_s,
        world.dumps,
        begins_anew=True,
    )


class Line:
    """What the SDK in this process uses as its channel, with the node's state machine behind it."""

    def __init__(self, spec: ClusterSpec, *, interrupt: Callable[[], None]) -> None:
        self._spec = spec
        self._interrupt = interrupt
        self._changed = threading.Condition()
        self._join: Join | None = None
        self.arrived_at = 0.0
        self._trouble = ""
        self._faulted_in = 0
        """The generation in which the SDK has told of a fault last."""
        self._ended = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._inbox: asyncio.Queue[core.Event] = asyncio.Queue()
        group = core.GroupSpec(spec.node_id, rules_of(spec), 0.0, 0.0, False, random.random)
        self._group = core.WorkerGroup(group, now=time.monotonic())
        self._voice = Voice(spec.node_id)
        self._channel = None if spec.tls is None else Channel(spec.tls)
        self._link = make_link(
            spec, self._note, voice=self._voice, channel=self._channel, is_placed=lambda: self._join is not None
        )
        threading.Thread(target=self._serve, name="holdfast-node", daemon=True).start()
        self._exit = ExitWatch()
        atexit.register(self._leave)

    # --- what the SDK asks for --------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        pid = os.getpid()
        match message:
            case Faulted():
                self._faulted_in = message.generation
                self._put(core.StepFailed(pid, message.generation, message.step, message.kind, message.error))
            case Committed():
                self._put(core.StepCommitted(pid, message.generation, message.timings_ms, message.saves))
            case Stranded():
                self._put(core.StateLost(message.generation))
            case Resumed():
                self._put(core.StateSought(Resumption(message.generation, message.step, message.verdict)))
            case Stuck():
                self._voice.die(
                    f"{HANG_MARK}stuck in generation {message.generation}, which is over\n{message.stack}", 1
                )

    def newest(self) -> Join | None:
        return self._join

    def wait_above(self, generation: int, *, timeout_s: float | None) -> Join:
        with self._changed:
            self._changed.wait_for(lambda: self._trouble or self._is_above(generation), timeout_s)
        join = self._join
        if join is not None and join.generation > generation:
            return join
        raise JobError(self._trouble or f"no new world within {timeout_s:g} s")

    def _is_above(self, generation: int) -> bool:
        return self._join is not None and self._join.generation > generation

    # --- the node ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(with_reminders(self._channel, self._live()))
        except HoldfastError as error:
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001  the root of this thread: the script must not wait for it
            traceback.print_exc()
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            self._notify()

    async def _live(self) -> None:
        self._link.report(core.Report(0, self._group.status()))
        linking = asyncio.create_task(self._link.run())
        while True:
            deadline = self._group.next_deadline()
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            getting = asyncio.ensure_future(self._inbox.get())
            done, _ = await asyncio.wait({getting, linking}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if linking in done:
                linking.result()
            event = getting.result() if getting in done else core.TimePassed()
            if getting not in done:
                getting.cancel()
            for action in self._group.handle(event, now=time.monotonic()):
                await self._perform(action)
            if getting in done:
                self._inbox.task_done()

    async def _perform(self, action: core.Action) -> None:
        pid = os.getpid()
        match action:
            case core.Report():
                self._link.report(action)
            case core.Launch():
                self._inbox.put_nowait(core.WorkerStarted(0, pid))
                self._inbox.put_nowait(core.WorkerAttached(pid))
            case core.Invite():
                self._take(action)
            case core.Forward() | core.Kill() | core.Sweep():
                if not self._ended.is_set():
                    await self._link.flush(within_s=1.0)
                    self._voice.die(self._group.status().reason or "the cluster is being stopped", 1)
                self._inbox.put_nowait(core.Swept())
            case core.Exit():
                if not self._ended.is_set():
                    self._voice.die(action.reason, action.code or 1)

    def _take(self, action: core.Invite) -> None:
        join = invitation(action.world, action.placement, verdict_s=verdict_s(self._spec))
        with self._changed:
            self._join, self.arrived_at = join, time.monotonic()
            self._changed.notify_all()
        self._interrupt()

    def _note(self, note: Note) -> None:
        match note:
            case Happened():
                self._voice.tell(note.entry)
            case Waited():
                self._voice.say(note.reason)
            case _:
                self._inbox.put_nowait(note)

    def _put(self, event: core.Event) -> None:
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, event)

    # --- the end ----------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Tell how the script has ended; where another process may take its place, the closed connection tells of a bad
        end."""
        is_good = self._exit.ended_well()
        if self._trouble or not (is_good or (self._join is not None and not self._spec.recovery)):
            return
        told = asyncio.run_coroutine_threadsafe(self._say_goodbye() if is_good else self._confess(), self._loop)
        told.add_done_callback(lambda _: self._notify())
        with self._changed:
            self._changed.wait_for(lambda: told.done() or not self._loop.is_running())

    async def _confess(self) -> None:
        """Say why the script has ended badly; where it has only lost a peer, wait to hear whom."""
        error, generation = self._exit.exception(), self._join.generation if self._join is not None else 0
        trace = "" if error is None else "".join(traceback.format_exception(error))
        if error is not None and has_lost_peer(error):
            # Whoever has waited for a verdict before, or can expect none, does not wait.
            if self._faulted_in < generation and self._spec.heartbeat:
                self._inbox.put_nowait(core.StepFailed(os.getpid(), generation, OUTSIDE, "communication", trace))
                await asyncio.sleep(verdict_s(self._spec) or 0.0)
            return
        await self._report_exit(self._exit.exit_code(), trace)
        await self._link.convince(within_s=BLAME_S)

    async def _report_exit(self, code: int, trace: str) -> None:
        self._ended.set()
        exited = core.WorkerExited(0, os.getpid(), code, None, trace, None)
        for action in self._group.handle(exited, now=time.monotonic()):
            await self._perform(action)
        # What follows from it is the last report.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._inbox.join()

    async def _say_goodbye(self) -> None:
        await self._report_exit(0, "")
        if await self._link.convince(within_s=PATIENCE_S):
            return
        waits = self._spec.recovery and self._join is not None
        self._voice.say(f"ended well; the scheduler has to hear of it{'' if waits else f' within {LEAVE_S:g} s'}")
        # One that comes back and does not know of it would wait for this worker to be started again.
        await self._link.convince(within_s=math.inf if waits else LEAVE_S)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _give_up(self, reason: str) -> None:
        self._trouble = reason
        self._notify()
        if self._join is not None and not self._ended.is_set():
            self._voice.die(reason, 1)
