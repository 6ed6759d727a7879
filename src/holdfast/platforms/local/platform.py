"""The platform that is this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.hosting import watch_exit
from holdfast.core.fleet.actions import NodeOrder
from holdfast.core.fleet.events import MemoryExhausted, NodeEnded, NodeStarted
from holdfast.errors import JobError
from holdfast.platforms.api import Capacity, NodeEvent, Whereabouts
from holdfast.platforms.local import entry
from holdfast.platforms.local.cgroups import Cgroups
from holdfast.platforms.local.memory import enforce
from holdfast.platforms.local.network import INTERFACE, Network
from holdfast.platforms.local.processes import MARK, kill_node, marked
from holdfast.platforms.slots import Slots

LOOK_S = 0.25
"""How often memory is looked at."""
ENTRY_S = 30.0
"""For a node to come to its gate; then it is killed, and has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What the nodes of a role are."""

    job_id: str
    command: Callable[[NodeOrder, str], Sequence[str]]
    """What a node runs, by its order and its address (empty where nodes have none of their own)."""
    env: Callable[[NodeOrder], Mapping[str, str]]
    directory: Path
    """Where each node's own directory is made."""
    open_output: Callable[[NodeOrder], tuple[int, int]]
    """Descriptors for a node's output and errors; they are closed here once the node has them."""
    workdir: str | None = None
    """Where nodes work, if not in their own directories."""
    cpu: float | None = None


@dataclass(slots=True)
class _Node:
    order: NodeOrder
    recipe: Recipe
    host: str
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    address: str = ""
    groups: dict[str, str] | None = None
    exhausted: bool = False
    kill_timer: asyncio.TimerHandle | None = None


class LocalPlatform:
    """Its nodes are children of the thread that runs the event loop, and die with it. Recipes go by role."""

    def __init__(
        self,
        recipes: Mapping[str, Recipe],
        *,
        tasks: asyncio.TaskGroup,
        slots: int | None = None,
        network: Network | None = None,
        cgroups: Cgroups | None = None,
    ) -> None:
        self._recipes = recipes
        self._tasks = tasks
        self._network = network
        self._cgroups = cgroups
        self._slots = Slots(slots)
        self._orders: dict[str, NodeOrder] = {}
        self._nodes: dict[str, _Node] = {}
        self._events: asyncio.Queue[NodeEvent | None] = asyncio.Queue()
        self._looking = tasks.create_task(self._look())
        self._empty = asyncio.Event()
        self._closing = False

    # --- orders -----------------------------------------------------------------------------------------------

    async def watch(self) -> AsyncIterator[NodeEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def create(self, order: NodeOrder) -> None:
        self._orders[order.name] = order
        self._slots.ask(order)
        await self._fill()

    async def delete(self, node: str, *, grace_s: float) -> None:
        if node in self._slots.pending:
            self._slots.leave(node)
            self._tell(NodeEnded(node))
            return
        running = self._nodes.get(node)
        if running is None or running.process is None:
            return
        if grace_s <= 0:
            self._kill_soon(running)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.process.pid, signal.SIGTERM)
        if running.kill_timer is None:
            running.kill_timer = asyncio.get_running_loop().call_later(grace_s, self._kill_soon, running)

    def signal(self, node: str, number: int) -> None:
        """Pass a signal on to a node, as a terminal would."""
        running = self._nodes.get(node)
        if running is not None and running.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.process.pid, number)

    def reserve(self, role: str, num_nodes: int) -> None:
        self._slots.keep(role, num_nodes)
        self._tasks.create_task(self._fill())

    def quarantine(self, host: str) -> None:
        self._slots.quarantined.add(host)

    def capacity(self) -> Capacity:
        return Capacity(self._slots.slots, len(self._slots.hosts), tuple(sorted(self._slots.quarantined)))

    def resize(self, slots: int | None) -> None:
        self._slots.slots = slots
        self._tasks.create_task(self._fill())

    def find(self, node: str) -> Whereabouts:
        running = self._nodes.get(node)
        if running is None or running.process is None:
            return Whereabouts()
        pid = running.process.pid
        return Whereabouts(
            host=running.host,
            pid=pid,
            address=running.address,
            network_namespace=f"/proc/{pid}/ns/net" if self._network is not None else "",
            cgroups=running.groups or {},
            directory=str(running.directory),
        )

    async def close(self) -> None:
        self._closing = True
        self._looking.cancel()
        for node in list(self._slots.pending):
            await self.delete(node, grace_s=0.0)
        for running in list(self._nodes.values()):
            await asyncio.to_thread(self._kill, running)
        while self._nodes:
            self._empty.clear()
            await self._empty.wait()
        self._events.put_nowait(None)

    # --- starting ---------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        if self._closing:
            return
        # One at a time: those that still wait can be taken back while another one starts.
        for name, host in self._slots.admit():
            order = self._orders.pop(name)
            recipe = self._recipes[order.role]
            node = _Node(order, recipe, host, recipe.directory / name)
            self._nodes[name] = node
            try:
                gate = self._spawn(node)
                await asyncio.to_thread(self._let_in, node, gate)
            except (OSError, JobError) as error:
                await asyncio.to_thread(self._kill, node)
                if node.process is not None:
                    node.process.wait()
                if not self._closing:
                    sys.stderr.write(f"holdfast: {name} cannot be started: {error}\n")
                await self._bury(node, NodeEnded(name, exit_code=1))
                continue
            self._tell(NodeStarted(name, host))
            self._watch_exit(node)

    def _spawn(self, node: _Node) -> socket.socket:
        """Start a node, up to its gate."""
        order, recipe = node.order, node.recipe
        node.directory.mkdir(parents=True, exist_ok=True)
        if self._cgroups is not None:
            node.groups = self._cgroups.make(order.name, cpu=recipe.cpu, memory_bytes=order.memory_bytes)
        if self._network is not None:
            node.address = self._network.address(order.id)
        groups = list((node.groups or {}).values())
        apart = "network" if self._network is not None else "shared"
        command = recipe.command(order, node.address)
        ours, gate = socket.socketpair()
        out, err = recipe.open_output(order)
        way_in = [sys.executable, "-I", "-S", entry.__file__, str(os.getpid()), apart, str(gate.fileno())]
        try:
            node.process = subprocess.Popen(
                [*way_in, str(len(groups)), *groups, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=recipe.workdir or node.directory,
                env=self._environment(node),
                pass_fds=(gate.fileno(),),
                start_new_session=True,
            )
        finally:
            gate.close()
            for fd in {out, err}:
                os.close(fd)
        return ours

    def _let_in(self, node: _Node, gate: socket.socket) -> None:
        """In a thread: waits for the node to come to its gate, and opens it."""
        assert node.process is not None, "it was spawned"
        with gate:
            gate.settimeout(ENTRY_S)
            if gate.recv(4) != b"here":
                raise JobError("it did not come to its gate; see its log")
            if self._network is not None:
                self._network.connect(node.order.id, node.process.pid)
            gate.sendall(b"go")

    def _environment(self, node: _Node) -> dict[str, str]:
        env = {**node.recipe.env(node.order), MARK: self._mark(node)}
        if self._network is not None:
            # Groups of workers must not look for the machine's own interfaces: there are none.
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                env.setdefault(name, INTERFACE)
        return env

    def _mark(self, node: _Node) -> str:
        return f"{node.recipe.job_id}/{node.order.name}"

    # --- watching ---------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for node in list(self._nodes.values()):
                limit = node.order.memory_bytes
                if node.process is not None and not node.exhausted and limit is not None:
                    node.exhausted = await asyncio.to_thread(self._is_exhausted, node, limit)
                    if node.exhausted:
                        self._tell(MemoryExhausted(node.order.name))

    def _is_exhausted(self, node: _Node, limit_bytes: int) -> bool:
        if self._cgroups is not None:
            return self._cgroups.num_kills(node.order.name) > 0
        return enforce(marked(self._mark(node)), limit_bytes)

    def _kill_soon(self, node: _Node) -> None:
        self._tasks.create_task(asyncio.to_thread(self._kill, node))

    def _kill(self, node: _Node) -> None:
        if node.process is not None:
            kill_node(node.process.pid, self._mark(node))

    def _watch_exit(self, node: _Node) -> None:
        assert node.process is not None, "it was started"

        def ended() -> None:
            self._tasks.create_task(self._note_exit(node))

        watch_exit(node.process.pid, ended)

    async def _note_exit(self, node: _Node) -> None:
        assert node.process is not None, "it was started"
        code = node.process.wait()
        if self._cgroups is not None and self._cgroups.num_kills(node.order.name):
            node.exhausted = True
        # The first process is gone; what it left behind has no one to end it.
        await asyncio.to_thread(self._kill, node)
        number, exit_code = (-code, None) if code < 0 else (None, code)
        await self._bury(node, NodeEnded(node.order.name, exit_code, number, node.exhausted))

    async def _bury(self, node: _Node, event: NodeEnded) -> None:
        if node.kill_timer is not None:
            node.kill_timer.cancel()
        if self._cgroups is not None:
            await asyncio.to_thread(self._cgroups.remove, node.order.name)
        self._nodes.pop(node.order.name, None)
        self._slots.leave(node.order.name)
        self._tell(event)
        self._empty.set()
        self._tasks.create_task(self._fill())

    def _tell(self, event: NodeEvent) -> None:
        self._events.put_nowait(event)
