"""Which faults a soak puts in: the same for the same seed, whoever runs it, and however the job fares."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.chaos.evidence import Row
from holdfast.chaos.experiment import Strike

KINDS: tuple[Strike, ...] = (
    Strike("kill", "rank"),
    Strike("kill", "rank"),
    Strike("stop", "rank", for_s=60.0),
    Strike("exception", "rank", for_s=60.0),
    Strike("kill", "node"),
    Strike("kill", "node", {"signal": "TERM"}),
    Strike("network-loss", "node", for_s=60.0),
    Strike("kill", "agent"),
    Strike("kill", "master"),
)
WITHOUT_NETWORKS = {"network-loss": "stop"}
"""What comes nearest where nodes have no network of their own."""


@dataclass(frozen=True, slots=True)
class Draw:
    strike: Strike
    """Its target is only a kind: whom it means is known when it strikes."""
    place: int
    """Of the node that is struck, or whose worker or agent is."""

    def __str__(self) -> str:
        return str(self.strike) if self.strike.target == "master" else f"{self.strike} {self.place}"

    def aimed(self, nodes: list[Row]) -> Strike | None:
        """At whoever has the place now; None if nobody is there.

        Whoever is the only one with the state is spared: what is lost for good is no matter of recovery.
        """
        kind = self.strike.target
        if kind == "master":
            return self.strike
        there = [node for node in nodes if node["rank"] == self.place and node["state"] == "running"]
        trains = [node["rank"] for node in nodes if node["phase"] == "running"]
        if not there or not any(rank != self.place for rank in trains):
            return None
        if kind == "rank":
            return replace(self.strike, target=f"rank:{self.place}") if self.place in trains else None
        return replace(self.strike, target=f"{kind}:{there[-1]['name']}")


def draw(seed: int, *, num_nodes: int, with_networks: bool) -> Iterator[Draw]:
    """One after the other, without end."""
    drawn = random.Random(seed)
    while True:
        strike, place = drawn.choice(KINDS), drawn.randrange(num_nodes)
        fault = strike.fault if with_networks else WITHOUT_NETWORKS.get(strike.fault, strike.fault)
        yield Draw(replace(strike, fault=fault), place)
