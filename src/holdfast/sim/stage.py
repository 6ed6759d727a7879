"""What all parts of one simulation share."""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.sim.fleet import Fleet
from holdfast.sim.network import Network
from holdfast.sim.setup import Setup
from holdfast.sim.timeline import Timeline
from holdfast.sim.trace import Trace


@dataclass(frozen=True, slots=True)
class Stage:
    rng: random.Random
    timeline: Timeline
    trace: Trace
    setup: Setup
    network: Network
    fleet: Fleet
