"""A node whose workers another launcher starts, watches and ends, by functions that it lends.

The master decides when. Such workers cannot be told of another world, so all of them start again when one fails.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.agent.channel import Channel
from holdfast.agent.link import Identity, Link, Note, Waited
from holdfast.cluster.voice import Voice
from holdfast.core import workers as core
from holdfast.core.ids import Address
from holdfast.core.search import Search
from holdfast.errors import JobError
from holdfast.spec.agent import AgentSpec
from holdfast.spec.job import Command, JobRules, LogSpec, NodeSpec
from holdfast.wire.messages import Happened

KILL, START, MONITOR = "KILL_WORKER", "START_ALL_WORKER", "MONITOR"
ALL = -1
"""In place of process ids or local ranks."""
NOT_STARTED, VANISHED = 200, 300
"""What the launcher says of a worker instead of its exit code; None says that it runs."""
POLL_S = 0.2
FLUSH_S = 0.5
"""For the last report to get out; a master that misses it learns the same from the closed connection."""

Functions = Mapping[str, Callable[..., Any]]


class Node:
    def __init__(self, spec: AgentSpec, rules: JobRules, functions: Functions) -> None:
        self._functions = functions
        self._events: deque[core.Event] = deque()
        self._pids: dict[int, int] = {}
        """Of workers that run, by local rank."""
        self._awaited: set[int] = set()
        """Local ranks that were asked for and have not been seen yet."""
        self._sweeping = False
        self._exit: core.Exit | None = None
        nonce = secrets.token_hex(8)
        name = f"{socket.gethostname()}-{nonce[:6]}"
        self._voice = Voice(name)
        node = NodeSpec(
            rules=rules,
            command=Command(how="program", target=sys.argv[0]),
            num_workers=len(self._statuses()),
            logs=LogSpec(),
            node_rank=spec.node_rank,
            token=spec.token,
        )
        self._group = core.WorkerGroup(core.GroupSpec(name, rules, 0.0, 0.0, False), now=time.monotonic())
        self._link = Link(
            Search(Address(spec.host, spec.port)),
            node,
            Identity(name, nonce, None, 0),
            self._note,
            seen=lambda: self._voice.seen,
            tls=None if spec.tls is None else Channel(spec.tls).dialling(),
        )

    async def run(self) -> core.Exit:
        """Serve until this node's part of the job is over; then no worker is left."""
        self._link.report(core.Report(0, self._group.status()))
        linking = asyncio.create_task(self._link.run())
        try:
            while self._exit is None:
                await asyncio.wait({linking}, timeout=POLL_S)
                if linking.done():
                    linking.result()
                self._look()
                self._events.append(core.TimePassed())
                while self._events:
                    for action in self._group.handle(self._events.popleft(), now=time.monotonic()):
                        self._perform(action)
            await self._link.flush(within_s=FLUSH_S)
        finally:
            linking.cancel()
            self._call(KILL, [ALL])
        return self._exit

    def _perform(self, action: core.Action) -> None:
        match action:
            case core.Report():
                self._link.report(action)
            case core.Launch(local_ranks=local_ranks) if local_ranks:
                self._awaited = set(local_ranks)
                self._call(START)
            case core.Sweep():
                self._awaited, self._sweeping = set(), True
                self._call(KILL, [ALL])
            case core.Exit():
                self._exit = action
            case _:
                # The rest is for workers that can be asked: these are swept as soon as that is over.
                pass

    def _look(self) -> None:
        statuses = self._statuses()
        for local_rank, status in statuses.items():
            if local_rank in self._awaited and status["status"] != NOT_STARTED:
                self._awaited.discard(local_rank)
                self._pids[local_rank] = status["pid"]
                self._events.append(core.WorkerStarted(local_rank, status["pid"]))
            if local_rank in self._pids and status["status"] is not None:
                self._events.append(_exited(local_rank, self._pids.pop(local_rank), status["status"]))
        if self._sweeping and all(status["status"] is not None for status in statuses.values()):
            self._sweeping = False
            self._events.append(core.Swept())

    def _statuses(self) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = self._call(MONITOR, [ALL])
        return found

    def _call(self, operator: str, *args: object) -> Any:  # noqa: ANN401  whatever the launcher answers
        try:
            return self._functions[operator](*args)
        except Exception as error:  # a function of the user's
            raise JobError(f"{operator}: the function that was registered for it raised {error!r}") from error

    def _note(self, note: Note) -> None:
        match note:
            case Happened():
                self._voice.tell(note.entry)
            case Waited():
                self._voice.say(note.reason)
            case _:
                self._events.append(note)


def _exited(local_rank: int, pid: int, status: int) -> core.WorkerExited:
    if status == VANISHED:
        return core.WorkerExited(local_rank, pid, 1, None, "its process has vanished")
    return core.WorkerExited(local_rank, pid, status if status >= 0 else None, -status if status < 0 else None)
