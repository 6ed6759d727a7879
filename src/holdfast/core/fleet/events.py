"""What the fleets of a job are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """The platform has found room for a node, and started it."""

    node: str
    host: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """Nothing of a node is alive any more, or it never was."""

    node: str
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class MemoryExhausted:
    """A node has met its limit, and something on it was killed for that; the node itself may live."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeGivenUp:
    """The master counts a node among the lost."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeUnfit:
    """The master has refused a node, which ends by itself then: a check failed on it, or it holds up the others."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScaleAsked:
    role: str
    num_nodes: int


@dataclass(frozen=True, slots=True)
class RoleEnded:
    """No node is wanted any more; those that run end by themselves within this time, or are killed."""

    within_s: float
    why: str


@dataclass(frozen=True, slots=True)
class RoleFinished:
    """The master of a role has concluded it."""

    role: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the job to end, in order; one who is impatient, and not the first to ask, at once."""

    exit_code: int
    reason: str
    impatient: bool = False


@dataclass(frozen=True, slots=True)
class TimePassed:
    pass


NodeEvent = NodeStarted | NodeEnded | MemoryExhausted | NodeGivenUp | NodeUnfit
FleetEvent = NodeEvent | ScaleAsked | RoleEnded | TimePassed
"""For the nodes of one role."""
JobEvent = NodeEvent | ScaleAsked | RoleFinished | StopAsked | TimePassed
"""For all roles of a job."""
