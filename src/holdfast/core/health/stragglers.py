"""Telling a rank that holds up the others, for good, from one that was disturbed.

Ranks that train together all take as long as the slowest: the slow one is the one that does not wait. So a rank is a
straggler when it is busy for longer than the others, by more than a margin and more than noise explains, while the
others wait for about as much; and when that lasts for several windows in a row. A window in which it is slower, but by
less than that, says nothing: noise hides a mild straggler now and then, and must not clear it.

A slow network makes all wait, and nobody stands out. Then the node whose words take much longer to the master and back
than those of the others is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from holdfast.core.health.results import NodePace, Pace
from holdfast.core.health.verdicts import MAD_TO_SIGMA

MARGIN = 0.2
"""How much longer a step may take because of one rank."""
LEANING = 0.5
"""The part of that margin above which a rank is not as fast as the others, either."""
FLOOR_MS = 1.0
"""What a step may take longer in any case: nobody should care."""
MAX_Z = 3.0
"""Nor is a straggler who differs by fewer standard deviations: in one window, and it takes several in a row."""
NUM_IN_A_ROW = 3
"""Windows that say something, after which it is believed: both that it began and that it is over."""
WAITED_FOR = 0.5
"""Part of the excess that the others have to wait for it: those who do not are not held up."""
SLOW_TRIP, SLOW_TRIP_MS = 5.0, 5.0
"""How much longer than the others' a node's round trip to the master has to be: times, and milliseconds on top."""
MUCH_WAITING = 0.3
"""Part of a step spent waiting, on every rank, without which the network is no matter."""

NETWORK = "network"
WORDS = {"compute": "computing", "data": "loading data", "outside": "work between its steps", NETWORK: "the network"}


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a rank looks like a straggler in one window."""

    cause: str
    """`compute`, `data`, `outside` or `network`."""
    own_ms: float
    others_ms: float


@dataclass(frozen=True, slots=True)
class Straggler:
    rank: int
    node: str
    generation: int
    suspicion: Suspicion


@dataclass(slots=True)
class Watch:
    """What has been seen of one rank, window by window."""

    slow: int = 0
    fast: int = 0
    active: Straggler | None = None

    def note(self, straggler: Straggler | None) -> tuple[list[Straggler], list[Straggler]]:
        """One more window, in which it was a straggler or none: what began with it, and what ended."""
        self.slow, self.fast = (self.slow + 1, 0) if straggler else (0, self.fast + 1)
        if straggler and self.slow >= NUM_IN_A_ROW and self.active is None:
            self.active = straggler
            return [straggler], []
        if self.fast >= NUM_IN_A_ROW and self.active is not None:
            ended, self.active = self.active, None
            return [], [ended]
        return [], []


@dataclass(slots=True)
class Stragglers:
    """Compares the ranks of one world with each other, as their nodes tell of them."""

    generation: int = 0
    _paces: dict[str, NodePace] = field(default_factory=dict)
    _watches: dict[int, Watch] = field(default_factory=dict)
    _fresh: list[str] = field(default_factory=list)
    """Nodes with a window that has not been judged yet: it is compared with the others' windows of the same time."""

    @property
    def active(self) -> list[Straggler]:
        return [watch.active for watch in self._watches.values() if watch.active is not None]

    def begin(self, generation: int) -> list[Straggler]:
        """Another world: nothing carries over; those whose slowness ends with the world before are returned."""
        ended = self.active
        self.generation, self._paces, self._watches, self._fresh = generation, {}, {}, []
        return ended

    def lose(self, node: str) -> None:
        """A node is gone: the others are not judged until there is a whole world again."""
        self._paces.pop(node, None)
        self._fresh = [name for name in self._fresh if name != node]

    def note(self, node: str, pace: NodePace, *, world_size: int) -> tuple[list[Straggler], list[Straggler]]:
        """A node tells a window: which ranks have become stragglers, and which are none any more."""
        known = self._paces.get(node)
        if pace.generation != self.generation or (known is not None and pace.window <= known.window):
            return [], []
        # Whoever tells a second window while others tell none is the only one with news.
        judged = self._judge(world_size) if node in self._fresh else ([], [])
        self._paces[node] = pace
        self._fresh.append(node)
        has_all = sum(len(self._paces[name].ranks) for name in self._fresh) == world_size
        return self._judge(world_size) if has_all and judged == ([], []) else judged

    def _judge(self, world_size: int) -> tuple[list[Straggler], list[Straggler]]:
        nodes, self._fresh = self._fresh, []
        ranks = {rank: each for told in self._paces.values() for rank, each in told.ranks.items()}
        if len(ranks) < world_size or world_size < 2:
            return [], []
        found: list[Straggler] = []
        gone: list[Straggler] = []
        for node in nodes:
            network = suspect_network(node, self._paces)
            for number, rank in enumerate(sorted(self._paces[node].ranks)):
                suspicion = suspect(rank, ranks) or (network if number == 0 else None)
                if suspicion is None and leans(rank, ranks):
                    continue
                watch = self._watches.setdefault(rank, Watch())
                began, ended = watch.note(Straggler(rank, node, self.generation, suspicion) if suspicion else None)
                found += began
                gone += ended
        return found, gone


def suspect(rank: int, ranks: Mapping[int, Pace]) -> Suspicion | None:
    """Whether a rank holds up the others, by its own doing."""
    own, others = ranks[rank], _others(rank, ranks)
    usual = median(pace.busy_ms for pace in others)
    excess = own.busy_ms - usual
    spread = MAD_TO_SIGMA * median(abs(pace.busy_ms - usual) for pace in others)
    noise = max(spread, own.noise_ms, median(pace.noise_ms for pace in others))
    if not _exceeds(rank, ranks, MARGIN) or excess <= MAX_Z * noise:
        return None
    if median(pace.wait_ms for pace in others) - own.wait_ms < WAITED_FOR * excess:
        return None
    parts = {
        "compute": (own.compute_ms, median(pace.compute_ms for pace in others)),
        "data": (own.data_ms, median(pace.data_ms for pace in others)),
        "outside": (own.outside_ms, median(pace.outside_ms for pace in others)),
    }
    cause = max(parts, key=lambda part: parts[part][0] - parts[part][1])
    return Suspicion(cause, *parts[cause])


def leans(rank: int, ranks: Mapping[int, Pace]) -> bool:
    """Whether a rank is slower than the others, if not by so much that it is held against it."""
    return _exceeds(rank, ranks, LEANING * MARGIN)


def _exceeds(rank: int, ranks: Mapping[int, Pace], margin: float) -> bool:
    own = ranks[rank]
    excess = own.busy_ms - median(pace.busy_ms for pace in _others(rank, ranks))
    return excess > max(margin * (own.busy_ms + own.wait_ms - excess), FLOOR_MS)


def _others(rank: int, ranks: Mapping[int, Pace]) -> list[Pace]:
    return [pace for other, pace in ranks.items() if other != rank]


def suspect_network(node: str, paces: Mapping[str, NodePace]) -> Suspicion | None:
    """Whether all wait, and this node is the one that is hard to reach."""
    others = [pace.round_trip_ms for name, pace in paces.items() if name != node]
    own = paces[node].round_trip_ms
    if not others or own <= max(SLOW_TRIP * median(others), median(others) + SLOW_TRIP_MS):
        return None
    ranks = [pace for told in paces.values() for pace in told.ranks.values()]
    if any(pace.wait_ms < MUCH_WAITING * (pace.busy_ms + pace.wait_ms) for pace in ranks):
        return None
    return Suspicion(NETWORK, own, median(others))
