"""Who succeeds a master that was lost.

A node of the last world that has lost the master asks its deputies, in their order, for another one. A deputy that
has lost the master too stands for election. A vote binds: whoever has given it follows no master of an older term,
and no other one of the same, unless it is told that the election was lost. So two masters cannot both be elected, and
nobody goes back to the old one after having been counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.ids import Address, Mastership
from holdfast.core.job.events import Will

ELECTION_S = 1.5
"""From its start until a candidate gives up. Voters wait longer, so nobody leaves before it is decided."""


@dataclass(frozen=True, slots=True)
class Candidacy:
    """A node stands for election."""

    will: Will
    node: str
    master: Mastership
    dead: dict[str, str]
    """Nodes that refuse connections at the port of their agent, and so have none any more."""
    evidence: str
    """How the loss of the master was seen."""
    address: Address
    predecessors: tuple[Address, ...]
    """Where masters of this job have been: whoever is there now has to be told."""


@dataclass(slots=True)
class Election:
    """Counts votes for one candidate."""

    candidacy: Candidacy
    until: float
    votes: set[str] = field(default_factory=set)

    def vote(self, node: str, *, knows: tuple[int, int], now: float) -> str:
        """Take a node's vote, which knows of this version of the will; why it cannot be taken, or empty."""
        will = self.candidacy.will
        if now >= self.until:
            return "the election is over"
        if knows > will.version:
            return f"node {node} knows of a newer world"
        self.votes.add(node)
        return ""

    @property
    def voters(self) -> tuple[str, ...]:
        """Those whose votes count: the nodes of the last world."""
        return tuple(node for node in self._electorate() if node in self.votes)

    @property
    def needed(self) -> int:
        return len(self._electorate()) // 2 + 1

    @property
    def is_won(self) -> bool:
        return len(self.voters) >= self.needed

    def _electorate(self) -> list[str]:
        placements = self.candidacy.will.world.placements
        return [placement.node for placement in placements if placement.node not in self.candidacy.dead]
