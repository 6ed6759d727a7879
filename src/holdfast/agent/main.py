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

from holdfast.agent.addresses import bind_store, host_master
from holdfast.agent.channel import Channel
from holdfast.agent.console import Console
from holdfast.agent.crew import Crew
from holdfast.agent.hangs import kill_worker
from holdfast.agent.interpreter import Event as InterpreterEvent
from holdfast.agent.interpreter import Interpreter, Ruined
from holdfast.agent.lifeline import Lifeline
from holdfast.agent.link import Identity, Link, Note, Waited
from holdfast.agent.processes import become_subreaper, kill_below, kill_marked
from holdfast.agent.status import StatusLine
from holdfast.core import workers as core
from holdfast.core.ids import Address, Outcome
from holdfast.errors import HoldfastError, JobError
from holdfast.observe.report import render_outcome
from holdfast.spec.job import NodeSpec
from holdfast.wire.messages import Happened

INBOX_SIZE = 10_000
MASTER_LINGER_S = 10.0
"""How long the node that hosts the master stays, so that other nodes, and whoever reads along, hear how the job
ended; it is gone sooner if they have."""

FLUSH_S = 0.5
"""For the last report to get out; a master that misses it learns the same from the closed connection."""

QUIET_KINDS = frozenset({"node_joined", "node_refused", "world_formed", "workers_started", "job_finished"})
"""What goes as expected is for the events file, not for the terminal."""


class Agent:
    """One node of a job."""

    def __init__(self, spec: NodeSpec, *, run_dir: Path, console: Console, interpreter: Interpreter) -> None:
        nonce = secrets.token_hex(8)
        host = socket.gethostname()
        node = host if spec.single else f"{host}-{nonce[:6]}"
        self._spec = spec
        self._run_dir = run_dir
        self._console = console
        self._inbox: asyncio.Queue[core.Event] = asyncio.Queue(INBOX_SIZE)
        self._channel = None if spec.tls is None else Channel(spec.tls)
        self._store, store_address = bind_store(spec)
        self._ruin: JobError | None = None
        self._master = host_master(
            spec,
            nonce=nonce,
            journal=run_dir / "journal.db",
            channel=self._channel,
            on_death=self._note_master_death,
            on_ruin=self._give_up,
        )
        self._address = self._master.address if self._master else Address(spec.host, spec.port)
        self._group = core.WorkerGroup(
            core.GroupSpec(node, spec.rules, spec.drain_s, spec.shutdown_s, self._master is not None),
            now=self._now(),
        )
        identity = Identity(node, nonce, store_address.host or None, store_address.port)
        self._link = Link(
            self._address,
            spec,
            identity,
            self._note_link,
            seen=lambda: self._seen_seq,
            tls=None if self._channel is None else self._channel.dialling(),
        )
        self._crew = Crew(
            spec, console=console, interpreter=interpreter, logs=run_dir, store=self._store, put=self._put
        )
        self._status = StatusLine(spec)
        self._events = open(spec.events_file, "a", buffering=1) if spec.events_file else None  # noqa: SIM115
        self._seen_seq = 0
        self.exit: core.Exit | None = None

    def kept(self) -> set[int]:
        """Our own processes, which a sweep must spare."""
        return {self._master.hosted.pid} if self._master is not None else set()

    async def run(self, guard: int) -> int:
        """Serve this node until its part of the job is over."""
        loop = asyncio.get_running_loop()
        for name in self._spec.signals:
            number = signal.Signals[name]
            loop.add_signal_handler(number, self._put, core.SignalReceived(number))
        loop.add_reader(guard, self._note_guard_death, guard)
        if self._master is not None:
            self._master.hosted.start()
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
                self._crew.launch(action)
            case core.Invite():
                self._crew.invite(action)
            case core.Forward():
                self._crew.forward(action.signal)
            case core.Kill():
                kill_worker(action.pid)
            case core.Sweep():
                self._crew.sweep()
            case core.ReviveMaster():
                if self._master is not None:
                    self._console.say("the master does not answer; it is started again", level="warning")
                    self._master.hosted.revive()
            case core.Exit():
                self.exit = action

    # --- what others say --------------------------------------------------------------------------------------

    def _note_link(self, note: Note) -> None:
        match note:
            case Happened():
                self._tell(note.entry)
            case Waited():
                self._console.say(note.reason)
            case _:
                self._put(note)

    def _warn(self, text: str) -> None:
        self._console.say(text, level="warning")

    def _note_master_death(self, reason: str) -> None:
        self._console.say(f"the master ended {reason}; it is started again from its journal", level="warning")
        self._put(core.Heard(self._now()))

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
        again = entry["kind"] == "workers_started" and entry["since_failure_ms"] is not None
        told_elsewhere = (entry["kind"] == "waiting" and self._spec.single) or entry.get("decision") == "finish"
        if again or (entry["kind"] not in QUIET_KINDS and not told_elsewhere):
            self._console.say(entry["text"], level=entry["level"])

    # --- the end ----------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        if self._master is not None:
            job_ended = self.exit is not None and self.exit.outcome is not None
            linger_s = MASTER_LINGER_S if job_ended else 0.0
            await self._master.hosted.wait_until_gone(within_s=linger_s)
        await self._crew.close()
        for leftover in self._run_dir.glob("journal.db*"):
            leftover.unlink(missing_ok=True)
        self._store.close()

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
