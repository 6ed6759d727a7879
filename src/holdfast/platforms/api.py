"""What every platform does, and what a person may ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.core.fleet.actions import NodeOrder
from holdfast.core.fleet.events import MemoryExhausted, NodeEnded, NodeStarted

NodeEvent = NodeStarted | NodeEnded | MemoryExhausted


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many nodes there is room for, and how many of these places are used."""

    slots: int | None
    """None: as many as are asked for."""
    used: int
    quarantined: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a node can be found from outside; what a platform does not have is empty."""

    host: str = ""
    pid: int | None = None
    """The first process of the node; all its others are below it."""
    address: str = ""
    network_namespace: str = ""
    """A file that stands for it, as `nsenter --net=` takes it."""
    cgroups: dict[str, str] = field(default_factory=dict)
    """Directory by controller."""
    directory: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Platform(Protocol):
    """Orders in, events out. Every node that was created ends with exactly one `NodeEnded`."""

    def watch(self) -> AsyncIterator[NodeEvent]:
        """Events in the order in which they happened, until the platform is closed. For one reader."""
        ...

    async def create(self, order: NodeOrder) -> None:
        """Have a node; it is pending until there is room for it, and starts then by itself."""
        ...

    async def delete(self, node: str, *, grace_s: float) -> None:
        """Ask a node to leave, and kill it after the grace; returns at once. A node that is gone is no error."""
        ...

    def reserve(self, role: str, num_nodes: int) -> None:
        """Keep room for so many nodes of a role; those of other roles beyond what is kept for them wait."""
        ...

    def quarantine(self, host: str) -> None:
        """Start no further node on a host."""
        ...

    def capacity(self) -> Capacity: ...

    def resize(self, slots: int | None) -> None:
        """From now on there is room for so many; nodes that run stay."""
        ...

    def find(self, node: str) -> Whereabouts: ...

    async def close(self) -> None:
        """End every node at once; nothing of them is left afterwards."""
        ...
