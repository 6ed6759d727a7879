"""What nodes that elect a master have around them: time, the network, and who has acted so far."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driving import rules

from holdfast.core.ids import Address
from holdfast.sim.timeline import Timeline
from holdfast.spec.strategy import Strategy

if TYPE_CHECKING:
    from electing import Node
    from electing_master import Master

LIMITS = (1, 6)
RULES = rules(
    min_nodes=LIMITS[0],
    max_nodes=LIMITS[1],
    strategies=(Strategy.ELASTIC_TRAINING, Strategy.EXIT),
    lease_s=5.0,
    last_call_s=0.5,
    join_timeout_s=1000.0,
    max_restarts=1000,
    restart_window_s=1.0,
)
DELAY_S = 0.01
"""Of one message, and of the start or the end of a worker."""
RESTART_S = 0.5
"""From the death of a master to the next one."""
TELL_S = 1.0
"""Between two words to the addresses of earlier masters."""

Act = Callable[[], None]


class Process:
    """Can be stopped: what happens to it then, happens when it goes on."""

    def __init__(self) -> None:
        self.alive, self.is_stopped = True, False
        self._backlog: list[Act] = []

    def do(self, act: Act) -> None:
        if self.alive and self.is_stopped:
            self._backlog.append(act)
        elif self.alive:
            act()

    def go_on(self) -> None:
        self.is_stopped = False
        backlog, self._backlog = self._backlog, []
        for act in backlog:
            self.do(act)


@dataclass(eq=False)
class Attempt:
    """One connection of a node to whoever serves an address."""

    node: Node
    dial_at: float
    is_candidate: bool
    open: bool = True
    connected: bool = False
    master: Master | None = None
    unanswered: dict[int, float] = field(default_factory=dict)


@dataclass(eq=False)
class Port:
    """Held by an agent; who dials waits until a master serves it."""

    node: Node
    master: Master | None = None
    queue: list[Attempt] = field(default_factory=list)

    def serve(self) -> None:
        master = self.master
        if master is None or not master.alive or master.is_stopped:
            return
        queue, self.queue = self.queue, []
        for attempt in queue:
            if attempt.open:
                attempt.master = master
                newest = master.job.master if master.successor is None else master.successor[0]
                master.send(attempt, lambda attempt=attempt, newest=newest: attempt.node.greet(attempt, newest))


class Stage:
    """Everything there is."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.timeline = Timeline()
        self.reached: Counter[str] = Counter()
        self.cut: set[str] = set()
        """Nodes that hear each other, and nobody else."""
        self.ports: dict[Address, Port] = {}
        self.terms: dict[int, int] = {}
        """Of the master that has published a generation."""
        self.newest = 0
        self.on_stand: Callable[[Node], None] = lambda node: None
        self.nodes: list[Node] = []

    @property
    def now(self) -> float:
        return self.timeline.now

    def reaches(self, one: Node, other: Node) -> bool:
        return one is other or (
            one.has_power and other.has_power and (one.name in self.cut) == (other.name in self.cut)
        )

    def publish(self, master: Master) -> None:
        """Whoever has no part in a world must have no worker."""
        world, term = master.job.world, master.job.master.term
        assert world is not None, "it was published"
        placed = {placement.node for placement in world.placements}
        stale = [node.name for node in self.nodes if node.is_training(self.now) and node.name not in placed]
        assert not stale, f"{self.now:.2f}: the ranks of {stale} are given away by master {term}, and they live"
        self.terms[world.generation] = term

    def begin(self, generation: int) -> None:
        """A node does what a master has told it: from then on only that one acts, or a newer one."""
        term = self.terms[generation]
        assert term >= self.newest, f"{self.now:.2f}: master {term} acts after master {self.newest}"
        self.reached["successor acts"] += term > self.newest
        self.newest = term
