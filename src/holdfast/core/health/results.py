"""What a node finds out about itself: the results of a check, and the pace of its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

COMPUTE, MEMORY, LOOPBACK, ALL_REDUCE = "compute", "memory", "loopback", "all_reduce"


@dataclass(frozen=True, slots=True)
class Timing:
    """The median of a few repetitions, and how far they scatter around it (as a standard deviation)."""

    ms: float
    noise_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PairResult:
    """One all-reduce with one other node."""

    peer: str
    timing: Timing | None
    error: str = ""
    """Why there is no timing."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one node has to say about one round of a check."""

    check_id: int
    round: int
    timings: dict[str, Timing] = field(default_factory=dict)
    """By metric; what the node did on its own."""
    pairs: tuple[PairResult, ...] = ()
    error: str = ""
    """Why the node could not do its own part; empty if it could."""
    is_whole: bool = True
    """Not while only the node's own part is done: tests with other nodes may follow."""

    @property
    def key(self) -> tuple[int, int]:
        return self.check_id, self.round


@dataclass(frozen=True, slots=True)
class Pace:
    """What a step costs one rank, in milliseconds: medians over one window."""

    compute_ms: float
    data_ms: float
    outside_ms: float
    """Between two steps, in neither of the other phases."""
    wait_ms: float
    """In collectives: for slower ranks, and for the network."""
    noise_ms: float
    """How far the first three together scatter within the window (as a standard deviation of their median)."""

    @property
    def busy_ms(self) -> float:
        """What the others may have to wait for."""
        return self.compute_ms + self.data_ms + self.outside_ms


@dataclass(frozen=True, slots=True)
class NodePace:
    """The last window of a node that is worth a message."""

    generation: int
    window: int
    """Grows with each window of the node, told or not."""
    ranks: dict[int, Pace]
    round_trip_ms: float = 0.0
    """To the master and back; the median over the window."""
