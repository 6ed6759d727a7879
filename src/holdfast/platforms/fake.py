"""A platform without machines, for tests: nodes start when there is room, and end when they are told to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

from holdfast.core.fleet.actions import NodeOrder
from holdfast.core.fleet.events import NodeEnded, NodeStarted
from holdfast.platforms.api import Capacity, NodeEvent, Whereabouts
from holdfast.platforms.slots import Slots


class FakePlatform:
    def __init__(self, *, slots: int | None = None) -> None:
        self._slots = Slots(slots)
        self._events: asyncio.Queue[NodeEvent | None] = asyncio.Queue()
        self.orders: dict[str, NodeOrder] = {}

    async def watch(self) -> AsyncIterator[NodeEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def create(self, order: NodeOrder) -> None:
        self.orders[order.name] = order
        self._slots.ask(order)
        self._fill()

    async def delete(self, node: str, *, grace_s: float) -> None:
        was_running = node in self._slots.hosts
        self.end(node, number=signal.SIGTERM if grace_s else signal.SIGKILL, started=was_running)

    def end(self, node: str, *, number: int, started: bool = True) -> None:
        """What a signal does to a node."""
        if self._slots.leave(node):
            self._events.put_nowait(NodeEnded(node, signal=number if started else None))
            self._fill()

    def reserve(self, role: str, num_nodes: int) -> None:
        self._slots.keep(role, num_nodes)
        self._fill()

    def quarantine(self, host: str) -> None:
        self._slots.quarantined.add(host)

    def capacity(self) -> Capacity:
        return Capacity(self._slots.slots, len(self._slots.hosts), tuple(sorted(self._slots.quarantined)))

    def resize(self, slots: int | None) -> None:
        self._slots.slots = slots
        self._fill()

    def find(self, node: str) -> Whereabouts:
        return Whereabouts(host=self._slots.hosts.get(node, ""))

    async def close(self) -> None:
        for node in [*self._slots.hosts, *self._slots.pending]:
            self.end(node, number=signal.SIGKILL)
        self._events.put_nowait(None)

    def _fill(self) -> None:
        for node, host in self._slots.admit():
            self._events.put_nowait(NodeStarted(node, host))
