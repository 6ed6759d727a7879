"""What an agent knows of its node's workers, and what it tells the master of them. Nothing here decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.health.results import CheckResult, NodePace
from holdfast.core.ids import NodePhase, NodeStatus, Placement, Resumption, StepFault, WorkerFailure, World
from holdfast.core.workers.events import Exit, Report
from holdfast.spec.job import JobRules

ACTIVE = (NodePhase.RUNNING, NodePhase.BROKEN)
"""Workers are there, and nobody has asked them to end."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What the worker group of one node has to know."""

    node: str
    rules: JobRules
    drain_s: float
    shutdown_s: float
    hosts_master: bool
    draw: Callable[[], float] = lambda: 0.0
    """A random number from 0 to 1, for the time to the next beat."""


class State:
    """Changed by the functions of this package, in answer to events."""

    def __init__(self, spec: GroupSpec, *, now: float) -> None:
        self.spec = spec
        self.phase = NodePhase.READY
        self.generation = 0
        self.hosts_master = spec.hosts_master
        self.master_since = now
        """From when on a master on this node is expected to answer."""
        self.is_bequeathed = False
        self.alive: dict[int, int] = {}
        """Process ids by local rank."""
        self.pending: set[int] = set()
        """Local ranks that are being started."""
        self.attached: set[int] = set()
        """Process ids of workers that use the SDK."""
        self.newcomers: set[int] = set()
        """Process ids of workers that were started to repair a world, and so will attach."""
        self.faults: list[StepFault] = []
        self.committed: dict[int, int] = {}
        self.saves = False
        self.timings_ms: dict[str, float] = {}
        self.dying: dict[int, float] = {}
        """Local ranks whose script has raised, with when they are killed if they have not ended by then."""
        self.parked = 0
        self.check_key = (0, 0, False)
        """The newest part of a check that this node was asked for."""
        self.check: CheckResult | None = None
        self.pace: NodePace | None = None
        self.resumption: Resumption | None = None
        self.any_ended = False
        self.store_generation = 0
        self.world: World | None = None
        self.placement: Placement | None = None
        self.failures: list[WorkerFailure] = []
        self.reason = ""
        self.is_called_off = False
        """Whether the workers were stopped by the fence or an order, since the newest world began here."""
        self.floor = 0
        self.end_job: int | None = None
        self.exit_with: Exit | None = None
        self.signalled = False
        self.held_back: tuple[int, int] | None = None
        """A worker that was given notice, and the signal that all of them get when it has saved its state."""
        self.sweeping = False
        self.seq = 0
        self.heard_at = now
        self.beat_at = self._next_beat(now=now)
        self.kill_at: float | None = None
        self.give_up_at: float | None = None

    def status(self) -> NodeStatus:
        idle = self.phase is NodePhase.READY
        generation = max(self.generation, self.floor) if idle else self.generation
        return NodeStatus(
            self.phase,
            generation,
            # Failures belong to the generation that ran, not to one that was called off before it started here.
            tuple(self.failures) if generation == self.generation else (),
            self.pids(),
            self.reason,
            self.end_job,
            self.phase in ACTIVE and self.can_move(),
            tuple(self.faults),
            min(self.committed.values()) if len(self.committed) == len(self.pids()) > 0 else 0,
            self.timings_ms,
            self.parked,
            self.check,
            self.pace if self.phase in ACTIVE else None,
            self.resumption if self.phase in ACTIVE else None,
            self.held_back is not None,
            self.saves and self.phase in ACTIVE,
            self.is_called_off and self.phase in (NodePhase.DRAINING, NodePhase.READY),
        )

    def report(self, *, now: float) -> Report:
        self.seq += 1
        self.beat_at = self._next_beat(now=now)
        return Report(self.seq, self.status())

    def pids(self) -> tuple[int, ...]:
        if self.phase not in ACTIVE or self.placement is None:
            return ()
        if self.pending and self.phase is NodePhase.RUNNING:
            return ()
        return tuple(self.alive.get(local, 0) for local in range(self.placement.num_workers))

    def local_rank_of(self, pid: int) -> int | None:
        return next((local for local, each in self.alive.items() if each == pid), None)

    def can_move(self) -> bool:
        """Whether what lives here can go on in another world."""
        known = self.attached | self.newcomers
        return bool(known) and not self.any_ended and all(pid in known for pid in self.alive.values())

    def is_ending(self) -> bool:
        """Whether this node or the whole job is about to end, so that nothing may be begun."""
        return self.exit_with is not None or self.end_job is not None

    def _next_beat(self, *, now: float) -> float:
        rules = self.spec.rules
        if not rules.heartbeat and self.phase in ACTIVE:
            return math.inf
        return now + rules.beat_s + rules.beat_spread_s * self.spec.draw()
