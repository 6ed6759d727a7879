"""The agent of one node: turns the world into events for its worker group, and its decisions into effects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.addresses import bind_store
from holdfast.agent.channel import Channel
from holdfast.agent.console import Console
from holdfast.agent.crew import Crew
from holdfast.agent.hangs import kill_worker
from holdfast.agent.interpreter import Event as InterpreterEvent
from holdfast.agent.interpreter import Interpreter, Ruined
from holdfast.agent.lifeline import Lifeline
from holdfast.agent.link import Identity, Link, Note, Waited
from holdfast.agent.prober import Prober
from holdfast.agent.processes import become_subreaper, kill_below, kill_marked
from holdfast.agent.rendezvous import Rendezvous
from holdfast.agent.seat import Seat
from holdfast.agent.status import StatusLine, deserves_a_line
from holdfast.core import workers as core
from holdfast.core.ids import Outcome
from holdfast.core.search import Search
from holdfast.errors import HoldfastError, JobError
from holdfast.observe.report import render_outcome
from holdfast.spec.job import NodeSpec
from holdfast.wire.messages import Happened

INBOX_SIZE = 10_000
MASTER_LINGER_S = 10.0
"""How long the node that hosts the master stays, so that other nodes, and whoever reads along, hear how the job
ended; it is gone sooner if they have."""

HANDOVER_S = 3.0
"""For the master of a node that leaves to see the others into a world of their own; it is gone sooner if it has."""

FLUSH_S = 0.5
"""For the last report to get out; a master that misses it learns the same from the closed connection."""


class Agent:
    """One node of a job."""

    def __init__(self, spec: NodeSpec, *, run_dir: Path, console: Console, interpreter: Interpreter) -> None:
        nonce = secrets.token_hex(8)
        host = socket.gethostname()
        node = spec.node_name or (host if spec.single else f"{host}-{nonce[:6]}")
        self._spec = spec
        self._run_dir = run_dir
        self._console = console
        self._inbox: asyncio.Queue[core.Event] = asyncio.Queue(INBOX_SIZE)
        self._channel = None if spec.tls is None else Channel(spec.tls)
        self._store, store_address = bind_store(spec)
        self._ruin: JobError | None = None
        self._seat = Seat(
            spec,
            node=node,
            nonce=nonce,
            journals=run_dir,
            channel=self._channel,
            on_death=self._note_master_death,
            on_ruin=self._give_up,
        )
        self._group = core.WorkerGroup(
            core.GroupSpec(node, spec.rules, spec.drain_s, spec.shutdown_s, self._seat.is_first),
            now=self._now(),
        )
        identity = Identity(
            node, nonce, store_address.host or None, store_address.port, deputy_port=self._seat.deputy_port
        )
        self._link = Link(
            Search(self._seat.address, node=node, nonce=nonce, lease_s=spec.rules.lease_s),
            spec,
            identity,
            self._note_link,
            seen=lambda: self._seen_seq,
            tls=None if self._channel is None else self._channel.dialling(check_name=not self._seat.is_first),
            seat=self._seat,
        )
        self._crew = Crew(
            spec, console=console, interpreter=interpreter, logs=run_dir, store=self._store, put=self._put
        )
        self._prober = Prober(num_threads=spec.num_workers, interpreter=interpreter, store=self._store, put=self._put)
        self._status = StatusLine(spec.rules)
        self._rendezvous = Rendezvous(single=spec.single)
        self._events = open(spec.events_file, "a", buffering=1) if spec.events_file else None  # noqa: SIM115
        self._seen_seq = 0
        self.exit: core.Exit | None = None

    def kept(self) -> set[int]:
        """Our own processes, which a sweep must spare."""
        return self._seat.pids()

    async def run(self, guard: int) -> int:
        """Serve this node until its part of the job is over."""
        loop = asyncio.get_running_loop()
        for name in self._spec.signals:
            number = signal.Signals[name]
            loop.add_signal_handler(number, self._put, core.SignalReceived(number))
        loop.add_reader(guard, self._note_guard_death, guard)
        self._seat.take()
        await self._crew.open()
        self._perform(core.Report(0, self._group.status()))
        try:
            async with asyncio.TaskGroup() as tasks:
                serving = [tasks.create_task(self._link.run())]
                if self._channel is not None:
                    serving.append(tasks.create_task(self._channel.remind(self._warn)))
                await self._drive()
                await self._link.flush(within_s=FLUSH_S)
                for task in serving:
                    task.cancel()
        except* HoldfastError as group:
            raise _first(group) from None
        finally:
            await self._leave()
        assert self.exit is not None, "the drive ends with an exit"
        self._conclude(self.exit.outcome, self.exit)
        return self.exit.code

    def on_interpreter(self, event: InterpreterEvent) -> None:
        if isinstance(event, Ruined):
            self._give_up(event.error)
        else:
            self._prober.on_interpreter(event)
            self._crew.on_interpreter(event)

    # --- the loop ---------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        while self.exit is None:
            deadline = self._group.next_deadline()
            timeout = None if deadline is None else max(0.0, deadline - self._now())
            event: core.Event = core.TimePassed()
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with an event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    event = await self._inbox.get()
            if self._ruin is not None:
                raise self._ruin
            for action in self._group.handle(event, now=self._now()):
                self._perform(action)
            self._console.show_status(self._status.render(self._now()))

    def _perform(self, action: core.Action) -> None:
        match action:
            case core.Report():
                self._link.report(action)
            case core.Launch():
                self._announce(action)
                if not action.world.repairs:
                    self._prober.cancel()
                self._crew.launch(action)
            case core.Park():
                self._crew.prepare(action.world)
            case core.Probe():
                self._prober.probe(action.check)
            case core.Invite():
                self._announce(action)
                self._crew.invite(action)
            case core.GiveNotice():
                self._crew.give_notice(action)
            case core.Forward():
                self._crew.forward(action.signal)
            case core.Kill():
                kill_worker(action.pid)
            case core.Sweep():
                self._crew.sweep()
            case core.ReviveMaster():
                self._console.say("the master does not answer; it is started again", level="warning")
                self._seat.revive()
            case core.Exit():
                self.exit = action

    def _announce(self, action: core.Launch | core.Invite) -> None:
        if (text := self._rendezvous.text(action.world, action.placement)) is not None:
            self._console.say(text)

    # --- what others say --------------------------------------------------------------------------------------

    def _note_link(self, note: Note) -> None:
        match note:
            case Happened():
                self._tell(note.entry)
            case Waited():
                self._console.say(note.reason)
            case core.Heard():
                self._crew.pace.note_round_trip(self._now() - note.sent_at)
                self._put(note)
            case _:
                self._put(note)

    def _warn(self, text: str) -> None:
        self._console.say(text, level="warning")

    def _note_master_death(self, reason: str) -> None:
        self._console.say(f"the master ended {reason}; it is started again from its journal", level="warning")
        self._put(core.MasterDied())

    def _give_up(self, error: JobError) -> None:
        self._ruin = error
        self._put(core.TimePassed())

    def _note_guard_death(self, guard: int) -> None:
        """The process that the user started is gone: nobody waits for this job any more."""
        if not os.read(guard, 1):
            kill_below()
            kill_marked(self._spec.marker)
            if not self._spec.logs.kept:
                shutil.rmtree(self._run_dir, ignore_errors=True)
            os._exit(1)

    def _tell(self, entry: dict[str, Any]) -> None:
        """Show and write down an entry of the story, once."""
        if entry["seq"] <= self._seen_seq:
            return
        self._seen_seq = entry["seq"]
        if self._events is not None:
            self._events.write(msgspec.json.encode(entry).decode() + "\n")
        self._status.note(entry)
        if deserves_a_line(entry, single=self._spec.single):
            self._console.say(entry["text"], level=entry["level"])

    # --- the end ----------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        await self._seat.wait_until_gone(within_s=self._linger_s())
        self._prober.cancel()
        await self._crew.close()
        self._store.close()

    def _linger_s(self) -> float:
        if self.exit is None:
            return 0.0
        return HANDOVER_S if self.exit.outcome is None else MASTER_LINGER_S

    def _conclude(self, outcome: Outcome | None, end: core.Exit) -> None:
        if self._events is not None:
            self._events.close()
        if outcome is not None and (report := render_outcome(outcome)):
            self._console.say(report, level="error")
        elif outcome is None:
            self._console.say(f"stopped: {end.reason}", level="warning")

    def _put(self, event: core.Event) -> None:
        self._inbox.put_nowait(event)

    @staticmethod
    def _now() -> float:
        return time.monotonic()


def run_agent(spec: NodeSpec, *, run_dir: Path, guard: int, lifeline: Lifeline) -> int:
    """The body of the agent process; returns its exit code."""
    become_subreaper()
    agents: list[Agent] = []
    notify: Callable[[InterpreterEvent], None] = lambda event: agents[0].on_interpreter(event)  # noqa: E731
    interpreter = Interpreter(spec, lifeline, notify, kept=lambda: agents[0].kept() if agents else set())
    # First of all: importing torch is what takes longest, and everything else can happen meanwhile.
    interpreter.start()
    console = Console()

    async def serve() -> int:
        agent = Agent(spec, run_dir=run_dir, console=console, interpreter=interpreter)
        agents.append(agent)
        return await agent.run(guard)

    try:
        return asyncio.run(serve())
    except HoldfastError as error:
        console.say(str(error), level="error")
        return error.exit_code
    finally:
        kill_below()
        console.close(within_s=3.0)


def _first(group: BaseExceptionGroup[HoldfastError]) -> HoldfastError:
    leaves = [error for error in group.exceptions if isinstance(error, HoldfastError)]
    return leaves[0] if leaves else JobError(str(group))
