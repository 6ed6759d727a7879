"""What is told of the fitness of nodes: rounds of checks, verdicts, and stragglers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.core.health.stragglers import WORDS


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One node in one round of a check."""

    node: str
    peers: tuple[str, ...]
    """The nodes it was tested with."""
    timings_ms: dict[str, float]
    """`compute`, `memory`, `loopback`, and the fastest `all_reduce`: medians of a few repetitions."""
    verdict: str
    """`fit`, `slow`, `failed` or `unresolved` after this round; `helps` where the node was only a partner."""
    error: str
    """Why something could not be measured."""
    rank: int | None = None
    """Its rank among the nodes: that of its place in the world, or the one it wants; null while it has none."""

    @property
    def key(self) -> int | str:
        return self.node if self.rank is None else self.rank


@dataclass(frozen=True, slots=True)
class CheckRound:
    """A round of a check of nodes is over. A second one follows where the first does not say who is at fault."""

    kind: ClassVar[str] = "check_round"
    level: ClassVar[str] = "info"
    check_id: int
    round: int
    """1 or 2."""
    rows: tuple[CheckRow, ...]

    def __str__(self) -> str:
        columns = (("compute", "compute"), ("memory", "memory"), ("loopback", "loopback"), ("all_reduce", "all-reduce"))
        table = [("node", *(f"{title} ms" for _, title in columns), "with", "verdict")]
        for row in self.rows:
            times = [f"{row.timings_ms[name]:.2f}" if name in row.timings_ms else "-" for name, _ in columns]
            verdict = f"{row.verdict}: {_first_line(row.error)}" if row.error else row.verdict
            table.append((row.node, *times, ", ".join(row.peers) or "-", verdict))
        widths = [max(len(line[column]) for line in table) for column in range(6)]
        lines = [f"check {self.check_id}, round {self.round}:"]
        for line in table:
            cells = [line[0].ljust(widths[0]), *(line[at].rjust(widths[at]) for at in range(1, 5))]
            lines.append("  ".join(["", *cells, line[5].ljust(widths[5]), line[6]]))
        return "\n".join([*lines, *self._summary()])

    def _summary(self) -> list[str]:
        """The same in the lines of DLRover, which people look for: by rank, or by name without one, in seconds."""
        elapsed = {row.key: round(sum(row.timings_ms.values()) / 1000, 3) for row in self.rows if row.timings_ms}
        failed, slow = ([row.key for row in self.rows if row.verdict == verdict] for verdict in ("failed", "slow"))
        return [
            f"  Round {self.round}: The node elapsed time are {elapsed}",
            f"  Round {self.round}: The node status are { {row.key: not row.error for row in self.rows} }.",
            f"  Fault nodes are: {failed} and stragglers are: {slow}.",
        ]


@dataclass(frozen=True, slots=True)
class NodeUnfit:
    """The verdict of a check on a node that failed it or is slow."""

    kind: ClassVar[str] = "node_unfit"
    level: ClassVar[str] = "warning"
    node: str
    check_id: int
    fitness: str
    """`failed`, `slow`, or `unresolved`: it failed with a partner, and nobody can tell which of the two it is."""
    metric: str
    """By which it was judged: `probe`, `compute`, `memory`, `loopback` or `all_reduce`."""
    reason: str
    decision: str
    """`refused`, `used`, or `undecided` until another node comes with which it can be checked."""

    @property
    def why(self) -> str:
        """The verdict in words, for the node itself."""
        what = "slow" if self.fitness == "slow" else "failed the node check"
        return f"{what} ({self.metric}): {_first_line(self.reason)}"

    def __str__(self) -> str:
        return f"node {self.node} {'is ' if self.fitness == 'slow' else ''}{self.why}; {self.decision}"


@dataclass(frozen=True, slots=True)
class StragglerFound:
    """A rank has held up the others for several windows in a row."""

    kind: ClassVar[str] = "straggler_found"
    level: ClassVar[str] = "warning"
    rank: int
    node: str
    generation: int
    cause: str
    """`compute`, `data`, `outside` (between its steps), or `network`."""
    own_ms: float
    """What that costs this rank in each step; for the network, its node's round trip to the master."""
    others_ms: float
    """The same for the others: their median."""
    decision: str
    """`reported`, `replaced`, or why it was kept although slow nodes are to be replaced."""

    @property
    def why(self) -> str:
        """What it does, in words."""
        times = f"{self.own_ms:.1f} ms, {self.others_ms:.1f} ms elsewhere"
        return f"holds up the others by {WORDS[self.cause]} ({times})"

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node} {self.why}; {self.decision}"


@dataclass(frozen=True, slots=True)
class StragglerGone:
    """A rank that held up the others does so no longer."""

    kind: ClassVar[str] = "straggler_gone"
    level: ClassVar[str] = "info"
    rank: int
    node: str
    generation: int
    """The world in which it did."""
    reason: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node} does not hold up the others any more: {self.reason}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
