"""The network between the master and its agents: late, lossy, doubling, reordering, and cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import StrEnum

from holdfast.sim.setup import Setup
from holdfast.sim.timeline import Timeline


class Way(StrEnum):
    UP = "up"
    """To the master."""
    DOWN = "down"


class Block(StrEnum):
    CUT = "cut"
    """What is sent is lost."""
    CLOGGED = "clogged"
    """What is sent arrives when the way is free again, which may be much later."""


Place = tuple[str, Way]


class Network:
    """Carries messages, each one for itself: nothing promises their order."""

    def __init__(self, rng: random.Random, timeline: Timeline, setup: Setup, *, local: str | None) -> None:
        self._rng = rng
        self._timeline = timeline
        self._setup = setup
        self._local = local
        self._calm = False
        self._blocks: dict[Place, Block] = {}
        self._held: dict[Place, list[Callable[[], None]]] = {}

    def send(self, node: str, way: Way, deliver: Callable[[], None]) -> None:
        """Carry a message between `node` and the master."""
        rng, setup = self._rng, self._setup
        if node == self._local:
            self._timeline.after(rng.uniform(0.0001, 0.001), deliver)
            return
        if not self._calm and rng.random() < setup.drop:
            return
        copies = 2 if not self._calm and rng.random() < setup.double else 1
        for _ in range(copies):
            late = not self._calm and rng.random() < setup.spike
            delay_s = rng.uniform(0.1, 2.0) if late else rng.uniform(0.0005, 0.02)
            self._timeline.after(delay_s, lambda: self._arrive((node, way), deliver))

    def block(self, node: str, way: Way, block: Block) -> None:
        if not self._calm:
            self._blocks[node, way] = block

    def free(self, node: str, way: Way) -> None:
        self._blocks.pop((node, way), None)
        for deliver in self._held.pop((node, way), []):
            self._timeline.after(self._rng.uniform(0.0005, 0.02), deliver)

    def calm(self) -> None:
        """From now on every message arrives, once and soon."""
        self._calm = True
        for node, way in list(self._blocks):
            self.free(node, way)

    def _arrive(self, place: Place, deliver: Callable[[], None]) -> None:
        block = self._blocks.get(place)
        if block is Block.CLOGGED:
            self._held.setdefault(place, []).append(deliver)
        elif block is None:
            deliver()
