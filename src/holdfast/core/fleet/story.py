"""What happened to the nodes of a submitted job, as people read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class NodeCreated:
    """A node was asked of the platform."""

    kind: ClassVar[str] = "node_created"
    node: str
    rank: int
    memory_bytes: int | None
    replaces: str | None
    """The node whose rank it inherits."""
    reason: str

    @property
    def level(self) -> str:
        return "info" if self.replaces is None else "warning"

    def __str__(self) -> str:
        if self.replaces is None:
            return f"node {self.node} is made as rank {self.rank}: {self.reason}"
        return f"node {self.node} replaces {self.replaces} as rank {self.rank}: {self.reason}"


@dataclass(frozen=True, slots=True)
class NodeRuns:
    """The platform has started a node."""

    kind: ClassVar[str] = "node_runs"
    level: ClassVar[str] = "info"
    node: str
    host: str

    def __str__(self) -> str:
        return f"node {self.node} runs on {self.host}"


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node has ended."""

    kind: ClassVar[str] = "node_gone"
    node: str
    rank: int
    host: str
    cause: str
    """Why; empty if it was asked to."""
    evidence: str
    exit_code: int | None
    signal: int | None

    @property
    def level(self) -> str:
        return "warning" if self.cause else "info"

    def __str__(self) -> str:
        words = f" ({self.cause.replace('_', ' ')})" if self.cause else ""
        return f"node {self.node} is gone{words}: {self.evidence}"


@dataclass(frozen=True, slots=True)
class PlaceGivenUp:
    """No node takes the place of one that is gone."""

    kind: ClassVar[str] = "place_given_up"
    level: ClassVar[str] = "error"
    rank: int
    node: str
    reason: str

    def __str__(self) -> str:
        return f"node {self.node} is not replaced: {self.reason}"


@dataclass(frozen=True, slots=True)
class HostQuarantined:
    """Too many nodes failed on a host."""

    kind: ClassVar[str] = "host_quarantined"
    level: ClassVar[str] = "warning"
    host: str
    num_failures: int

    def __str__(self) -> str:
        return f"host {self.host} is not used any more: {self.num_failures} nodes failed on it"


@dataclass(frozen=True, slots=True)
class FleetScaled:
    """Somebody asked for another number of nodes."""

    kind: ClassVar[str] = "fleet_scaled"
    level: ClassVar[str] = "info"
    num_nodes: int
    before: int

    def __str__(self) -> str:
        return f"{self.num_nodes} nodes are wanted, not {self.before}"


Record = NodeCreated | NodeRuns | NodeGone | PlaceGivenUp | HostQuarantined | FleetScaled
