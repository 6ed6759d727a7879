"""What the fleets of a job want done."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.fleet.story import Record


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """A node as the platform is asked for it."""

    name: str
    id: int
    rank: int
    """Among the nodes of its role."""
    memory_bytes: int | None
    role: str


@dataclass(frozen=True, slots=True)
class Create:
    order: NodeOrder


@dataclass(frozen=True, slots=True)
class Delete:
    """Ask a node to leave, and kill it if it has not after the grace."""

    node: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ask a node to end its role, in order."""

    node: str


@dataclass(frozen=True, slots=True)
class Reserve:
    """From now on keep room for so many nodes of a role; what it has beyond them waits for the other roles."""

    role: str
    num_nodes: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    host: str


@dataclass(frozen=True, slots=True)
class Tell:
    record: Record
    role: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The role can never have enough nodes again."""

    reason: str


Action = Create | Delete | Interrupt | Reserve | Quarantine | Tell | GiveUp
