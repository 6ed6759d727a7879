"""The agent's side of the warm interpreter: start workers, hear of their ends, sweep.

If the interpreter is killed, its workers become children of the agent and train on; the agent watches them itself
and warms a new interpreter for the next start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.agent import requests
from holdfast.agent.hosting import watch_exit
from holdfast.agent.lifeline import Lifeline
from holdfast.agent.processes import kill_below, signal_groups
from holdfast.core.budget import Budget
from holdfast.errors import JobError
from holdfast.spec.job import NodeSpec

WARM_FILE = Path(__file__).with_name("warm.py")

# Libraries read these when they are imported, and then start threads that a fork would lose.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


MAX_ARGUMENT = 100_000
"""The kernel takes no single argument above 128 KiB."""
MAX_DEATHS = 5
DEATH_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Died:
    """The interpreter ended; its workers live on and are watched here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ruined:
    """It dies whenever it is started."""

    error: JobError


Event = requests.Reply | Died | Ruined


class Interpreter:
    """One warm interpreter after another; at most one at a time."""

    def __init__(
        self, spec: NodeSpec, lifeline: Lifeline, notify: Callable[[Event], None], *, kept: Callable[[], set[int]]
    ) -> None:
        self._spec = spec
        self._lifeline = lifeline
        self._notify = notify
        self._kept = kept
        """Processes of ours that a sweep must spare."""
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._workers: set[int] = set()
        self._orphans: set[int] = set()
        self._sweeping = False
        self._adopted = False
        """Whether processes of a dead interpreter may be below us."""
        self._budget = Budget(MAX_DEATHS, window_s=DEATH_WINDOW_S)
        self.ready = asyncio.Event()
        self.cold_reason = ""

    def start(self) -> None:
        """Start the process; it says `Ready` when workers can be forked. Needs no running loop."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, requests.MAX_BYTES)
        spec = self._spec
        # The interpreter's command line is the room in which a worker's own has to fit.
        room = sum(len(os.fsencode(arg)) + 1 for arg in spec.command.argv())
        padding = ["-" * MAX_ARGUMENT] * (room // MAX_ARGUMENT) + ["-" * (room % MAX_ARGUMENT)]
        settings = requests.Settings(
            spec.warm, spec.cold_reason, spec.command, spec.env, spec.marker, spec.numa_binding
        )
        memory = os.memfd_create("holdfast-settings", 0)
        with open(memory, "wb", closefd=False) as file:
            file.write(msgspec.msgpack.encode(settings))
        fds = (theirs.fileno(), self._lifeline.reader, self._lifeline.writer, memory)
        command = [sys.executable, "-u", str(WARM_FILE), *map(str, fds), *padding]
        env = {**spec.env, **ONE_THREAD} if spec.warm else spec.env
        self._process = subprocess.Popen(command, pass_fds=fds, env=env, start_new_session=True)
        theirs.close()
        os.close(memory)
        ours.setblocking(False)
        self._socket = ours

    def watch(self) -> None:
        """Begin to listen; called once the loop runs."""
        assert self._socket is not None, "started before it is watched"
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    # --- requests ---------------------------------------------------------------------------------------------

    def fork(self, request: requests.Fork, fds: list[int]) -> None:
        self._send(request, fds)

    def probe(self, request: requests.Probe, fds: list[int]) -> None:
        self._send(request, fds)

    def serve_store(self, request: requests.Store, listener: socket.socket) -> None:
        self._send(request, [listener.fileno()])

    def signal(self, number: int) -> None:
        self._send(requests.Signal(number), [])
        signal_groups(self._orphans, number)

    def sweep(self) -> None:
        """End everything the workers started. Orphans are ours to end; the rest is the interpreter's."""
        if self._adopted:
            self._sweep_orphans()
        if self._socket is None or not self.ready.is_set():
            self._notify(requests.Swept(clean=True))
        else:
            self._sweeping = True
            self._send(requests.Sweep(), [])

    async def stop(self) -> None:
        """End the interpreter and all below it."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        await asyncio.to_thread(kill_below, keep=self._kept())

    def _send(self, request: requests.Request, fds: list[int]) -> None:
        if self._socket is None:
            return
        try:
            socket.send_fds(self._socket, [msgspec.msgpack.encode(request)], fds)
        except OSError:
            # It has just died; the reader will see that and tell everybody.
            return

    # --- replies ----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        assert self._socket is not None, "the reader is removed first"
        try:
            data = self._socket.recv(requests.MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._mourn()
            return
        reply = msgspec.msgpack.decode(data, type=requests.Reply)
        match reply:
            case requests.Ready():
                self.cold_reason = reply.cold_reason
                self.ready.set()
            case requests.Started():
                self._workers.add(reply.pid)
            case requests.Exited():
                self._workers.discard(reply.pid)
            case requests.Swept():
                self._sweeping = False
            case _:
                pass
        self._notify(reply)

    def _mourn(self) -> None:
        assert self._process is not None, "it was started"
        assert self._socket is not None, "it was watched"
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        code = self._process.wait()
        self.ready.clear()
        self._adopted = True
        reason = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        self._orphans.update(self._workers)
        self._workers.clear()
        for pid in list(self._orphans):
            self._watch_orphan(pid)
        self._notify(Died(reason))
        if self._sweeping:
            # It was told to sweep and died over it: what it left is below us now.
            self._sweeping = False
            self._sweep_orphans()
            self._notify(requests.Swept(clean=True))
        if not self._budget.spend(now=asyncio.get_running_loop().time()):
            text = f"the warm interpreter died {MAX_DEATHS} times within {DEATH_WINDOW_S:g} s, last {reason}"
            self._notify(Ruined(JobError(text)))
            return
        self.start()
        self.watch()

    def _watch_orphan(self, pid: int) -> None:
        try:
            watch_exit(pid, lambda: self._reap_orphan(pid))
        except ProcessLookupError:
            self._reap_orphan(pid)

    def _reap_orphan(self, pid: int) -> None:
        if pid not in self._orphans:
            return
        self._orphans.remove(pid)
        try:
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            # The interpreter had reaped it, and died before it could say how it ended.
            code = -signal.SIGKILL
        self._notify(requests.Exited(pid, code))

    def _sweep_orphans(self) -> None:
        self._adopted = False
        reaped: dict[int, int] = {}
        kill_below(keep=self._kept() | {self.pid}, reaped=reaped)
        for pid, status in reaped.items():
            if pid in self._orphans:
                self._orphans.remove(pid)
                self._notify(requests.Exited(pid, os.waitstatus_to_exitcode(status)))
