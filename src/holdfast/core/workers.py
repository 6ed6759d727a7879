"""The workers of one node, as its agent sees them.

The agent obeys orders of growing generations only, reports its whole status whenever it changes and once a beat,
and stops its workers by itself when one fails, when the person at the terminal says so, or when it has not been
heard by the master for so long that somebody else may be given its ranks (`fence_s`).

No worker of a generation is alive once the status says `ready`: the last act of every generation is a sweep that
kills whatever the script left behind.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.faults import signal_name
from holdfast.core.ids import (
    Finish,
    NodePhase,
    NodeStatus,
    Order,
    Outcome,
    Placement,
    Prepare,
    Run,
    StepFault,
    Stop,
    WorkerFailure,
    World,
)
from holdfast.spec.job import JobRules

ACTIVE = (NodePhase.RUNNING, NodePhase.BROKEN)
"""Workers are there, and nobody has asked them to end."""

REVIVE_LEASES = 3
"""A master that has not answered its own node for so many leases is stuck and is started again."""

# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderReceived:
    order: Order


@dataclass(frozen=True, slots=True)
class Heard:
    """The master has answered something that was sent at `sent_at`, or is known to be dead since then."""

    sent_at: float


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """Always seen before anything else about this process."""

    local_rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerAttached:
    """A worker uses the SDK."""

    pid: int


@dataclass(frozen=True, slots=True)
class Parked:
    """So many processes wait at their loop for a rank."""

    count: int


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A worker's step failed; its process lives and waits for another world."""

    pid: int
    generation: int
    step: int
    kind: str
    error: str


@dataclass(frozen=True, slots=True)
class WorkerRaised:
    """A worker's script raised: it is about to end, and its peers' errors will be its echoes."""

    pid: int


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A worker has committed its first step of a generation."""

    pid: int
    generation: int
    timings_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class StateLost:
    """No rank of this generation holds a state that could be resumed from."""

    generation: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    error: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class StoreDied:
    """The store through which the workers of a generation find each other is gone."""

    generation: int


@dataclass(frozen=True, slots=True)
class Swept:
    """Nothing that the workers started is alive any more."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    number: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`next_deadline()` has come."""


Event = (
    OrderReceived
    | Heard
    | WorkerStarted
    | LaunchFailed
    | WorkerAttached
    | Parked
    | StepFailed
    | WorkerRaised
    | StepCommitted
    | StateLost
    | WorkerExited
    | StoreDied
    | Swept
    | SignalReceived
    | TimePassed
)


# --- actions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Start these local ranks of a world."""

    world: World
    placement: Placement
    local_ranks: tuple[int, ...]
    with_store: bool = False
    """Serve the store through which the ranks of this world, and of those that repair it, find each other."""


@dataclass(frozen=True, slots=True)
class Park:
    """Start a process for each local rank that this node would have, up to its loop."""

    world: World


@dataclass(frozen=True, slots=True)
class Invite:
    """Tell a worker that lives to join this world."""

    pid: int
    local_rank: int
    world: World
    placement: Placement


@dataclass(frozen=True, slots=True)
class Forward:
    """Send a signal to every live worker."""

    signal: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL one worker."""

    pid: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """Kill every worker and whatever they started, then answer `Swept`."""


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the master, or keep it until the master can be reached: only the newest counts."""

    seq: int
    status: NodeStatus


@dataclass(frozen=True, slots=True)
class ReviveMaster:
    """The master on this node does not answer: start it again from its journal."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Nothing is alive on this node; leave with this code."""

    code: int
    reason: str
    outcome: Outcome | None


Action = Launch | Park | Invite | Forward | Kill | Sweep | Report | ReviveMaster | Exit


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


class WorkerGroup:
    """One node's workers, through all generations."""

    def __init__(self, spec: GroupSpec, *, now: float) -> None:
        self.spec = spec
        self.phase = NodePhase.READY
        self.generation = 0
        self._alive: dict[int, int] = {}
        """Process ids by local rank."""
        self._pending: set[int] = set()
        """Local ranks that are being started."""
        self._attached: set[int] = set()
        """Process ids of workers that use the SDK."""
        self._newcomers: set[int] = set()
        """Process ids of workers that were started to repair a world, and so will attach."""
        self._faults: list[StepFault] = []
        self._committed: dict[int, int] = {}
        self._timings_ms: dict[str, float] = {}
        self._dying: dict[int, float] = {}
        """Local ranks whose script has raised, with when they are killed if they have not ended by then."""
        self._parked = 0
        self._any_ended = False
        self._store_generation = 0
        self._world: World | None = None
        self._placement: Placement | None = None
        self._failures: list[WorkerFailure] = []
        self._reason = ""
        self._floor = 0
        self._end_job: int | None = None
        self._exit_with: Exit | None = None
        self._signalled = False
        self._sweeping = False
        self._seq = 0
        self._heard_at = now
        self._beat_at = self._next_beat(now=now)
        self._kill_at: float | None = None
        self._give_up_at: float | None = None

    # --- the contract of every machine ------------------------------------------------------------------------

    def handle(self, event: Event, *, now: float) -> list[Action]:
        match event:
            case OrderReceived(order=Run(world=world)):
                return self._run(world, now=now)
            case OrderReceived(order=Prepare(world=world)):
                idle = self.phase is NodePhase.READY and self._exit_with is None and self._end_job is None
                return [Park(world)] if idle else []
            case OrderReceived(order=Stop() as stop):
                return self._obey_stop(stop, now=now)
            case OrderReceived(order=Finish(outcome=outcome)):
                return self._finish(outcome, now=now)
            case Heard():
                self._heard_at = max(self._heard_at, event.sent_at)
                return []
            case WorkerStarted():
                return self._note_start(event, now=now)
            case LaunchFailed():
                return self._note_launch_failure(event, now=now)
            case WorkerExited():
                return self._note_exit(event, now=now)
            case WorkerAttached():
                return self._note_attached(event.pid, now=now)
            case Parked():
                self._parked = event.count
                return [self._report(now=now)] if self.phase is NodePhase.READY else []
            case StepFailed():
                return self._note_fault(event, now=now)
            case WorkerRaised():
                return self._note_raised(event.pid, now=now)
            case StepCommitted():
                return self._note_commit(event, now=now)
            case StateLost():
                lost = event.generation == self.generation and self.phase in ACTIVE
                return self._drain("no rank holds a state to resume from", now=now) if lost else []
            case StoreDied():
                serving = event.generation == self._store_generation and self.phase in ACTIVE
                return self._drain("the workers' store died", now=now) if serving else []
            case Swept():
                return self._settle(now=now)
            case SignalReceived():
                return self._obey_signal(event.number, now=now)
            case TimePassed():
                return self._expire(now=now)
        raise AssertionError(f"an event nobody handles: {event}")

    def next_deadline(self) -> float | None:
        dates = (self._beat_at, self._kill_at, self._give_up_at, self._fence_at(), *self._dying.values())
        return min(date for date in dates if date is not None)

    def status(self) -> NodeStatus:
        idle = self.phase is NodePhase.READY
        generation = max(self.generation, self._floor) if idle else self.generation
        return NodeStatus(
            self.phase,
            generation,
            # Failures belong to the generation that ran, not to one that was called off before it started here.
            tuple(self._failures) if generation == self.generation else (),
            self._pids(),
            self._reason,
            self._end_job,
            self.phase in ACTIVE and self._can_move(),
            tuple(self._faults),
            min(self._committed.values()) if len(self._committed) == len(self._pids()) > 0 else 0,
            self._timings_ms,
            self._parked,
        )

    # --- orders -----------------------------------------------------------------------------------------------

    def _run(self, world: World, *, now: float) -> list[Action]:
        placement = world.placement_of(self.spec.node)
        stale = world.generation <= max(self.generation, self._floor)
        # Whoever was cut off for so long may have been replaced after this order was sent.
        cut_off = not self.spec.hosts_master and now >= self._heard_at + self.spec.rules.fence_s
        ending = self._exit_with is not None or self._end_job is not None
        if stale or cut_off or ending or placement is None:
            return []
        repairs = world.repairs and self.phase in ACTIVE
        if self.phase is not NodePhase.READY and not repairs:
            return []
        self.phase, self.generation = NodePhase.RUNNING, world.generation
        self._world, self._placement = world, placement
        self._failures, self._faults, self._timings_ms, self._reason = [], [], {}, ""
        if not repairs:
            self._alive, self._pending, self._attached, self._committed = {}, set(), set(), {}
            self._any_ended, self._store_generation = False, 0
        missing = tuple(
            local for local in range(placement.num_workers) if local not in self._alive and local not in self._pending
        )
        self._pending |= set(missing)
        actions: list[Action] = [
            self._invite(local, pid) for local, pid in self._alive.items() if pid in self._attached
        ]
        needs_store = placement.group_rank == 0 and not self._store_generation
        if needs_store:
            self._store_generation = world.generation
        if missing or needs_store:
            actions.append(Launch(world, placement, missing, needs_store))
        return actions

    def _obey_stop(self, stop: Stop, *, now: float) -> list[Action]:
        self._floor = max(self._floor, stop.generation)
        if self.generation > stop.generation or self.phase in (NodePhase.DRAINING, NodePhase.LEAVING):
            return []
        if self.phase in ACTIVE:
            return self._drain(stop.reason, now=now)
        self.phase = NodePhase.READY
        return [self._report(now=now)]

    def _finish(self, outcome: Outcome, *, now: float) -> list[Action]:
        if self._exit_with is not None:
            return []
        self._exit_with = Exit(outcome.exit_code, outcome.reason, outcome)
        self._give_up_at = None
        if self.phase in (NodePhase.DRAINING, NodePhase.LEAVING):
            return []
        return self._drain(outcome.reason, now=now)

    def _obey_signal(self, number: int, *, now: float) -> list[Action]:
        name, code = signal_name(number), 128 + number
        if self._signalled or number == signal.SIGHUP:
            # A second signal means now; a hang-up is the loss of this node, which has no time to drain.
            self._exit_with = self._exit_with or Exit(code, f"{name} received", None)
            self.phase, self._reason = NodePhase.LEAVING, self._reason or self._exit_with.reason
            return self._sweep()
        self._signalled = True
        reason = f"{name} received on {self.spec.node}"
        ends_job = number != signal.SIGTERM or self.spec.hosts_master
        if ends_job:
            self._end_job = code
            self._give_up_at = now + self.spec.shutdown_s + self.spec.rules.lease_s
        else:
            self._exit_with = self._exit_with or Exit(code, reason, None)
        phase = NodePhase.DRAINING if ends_job else NodePhase.LEAVING
        return self._drain(reason, now=now, phase=phase, signal_number=number, grace_s=self.spec.shutdown_s)

    # --- workers ----------------------------------------------------------------------------------------------

    def _note_start(self, event: WorkerStarted, *, now: float) -> list[Action]:
        self._pending.discard(event.local_rank)
        self._alive[event.local_rank] = event.pid
        if self._world is not None and self._world.repairs:
            self._newcomers.add(event.pid)
        if self.phase not in ACTIVE:
            # Stopping began while it was being started.
            return [Forward(signal.SIGTERM)]
        return [] if self._pending else [self._report(now=now)]

    def _note_attached(self, pid: int, *, now: float) -> list[Action]:
        local = self._local_rank_of(pid)
        if local is None or self._world is None:
            return []
        self._attached.add(pid)
        return [self._invite(local, pid), self._report(now=now)] if self._can_move() else [self._invite(local, pid)]

    def _invite(self, local_rank: int, pid: int) -> Invite:
        assert self._world is not None, "there is a world to join"
        assert self._placement is not None, "and a place in it"
        return Invite(pid, local_rank, self._world, self._placement)

    def _note_fault(self, event: StepFailed, *, now: float) -> list[Action]:
        local = self._local_rank_of(event.pid)
        if local is None or event.generation != self.generation or self.phase not in ACTIVE or self._placement is None:
            return []
        rank = self._placement.first_rank + local
        self._faults.append(StepFault(rank, self.spec.node, event.step, event.kind, event.error))
        if self._dying:
            return []
        self.phase = NodePhase.BROKEN
        return [self._report(now=now)]

    def _note_raised(self, pid: int, *, now: float) -> list[Action]:
        local = self._local_rank_of(pid)
        if local is not None and self.phase in ACTIVE:
            self._dying[local] = now + self.spec.drain_s
        return []

    def _note_commit(self, event: StepCommitted, *, now: float) -> list[Action]:
        local = self._local_rank_of(event.pid)
        if local is None:
            return []
        self._committed[local] = event.generation
        if event.generation == self.generation:
            slowest = max(sum(self._timings_ms.values()), sum(event.timings_ms.values()))
            self._timings_ms = event.timings_ms if sum(event.timings_ms.values()) == slowest else self._timings_ms
        whole = len(self._committed) == len(self._pids()) and min(self._committed.values()) == self.generation
        return [self._report(now=now)] if whole else []

    def _note_launch_failure(self, event: LaunchFailed, *, now: float) -> list[Action]:
        if event.generation != self.generation or self._placement is None:
            return []
        self._failures.append(WorkerFailure(self._placement.first_rank, 0, self.spec.node, 0, error=event.reason))
        return self._drain(event.reason, now=now)

    def _note_exit(self, event: WorkerExited, *, now: float) -> list[Action]:
        if self._alive.get(event.local_rank) != event.pid or self._placement is None:
            return []
        del self._alive[event.local_rank]
        self._dying.pop(event.local_rank, None)
        self._committed.pop(event.local_rank, None)
        self._any_ended |= event.exit_code == 0
        if event.exit_code != 0:
            self._failures.append(self._failure(event, self._placement))
        if self.phase in ACTIVE and event.exit_code != 0:
            if not self._can_move():
                return self._drain("", now=now)
            self.phase = NodePhase.BROKEN
            return [self._report(now=now)]
        return [] if self._alive or self._pending else self._sweep()

    def _failure(self, event: WorkerExited, placement: Placement) -> WorkerFailure:
        stopping = self.phase not in ACTIVE
        # One that had raised before it was stopped ended by its exception; our signal only cut its clean-up short.
        raised = stopping and bool(event.error) and event.signal in (signal.SIGTERM, signal.SIGKILL)
        return WorkerFailure(
            placement.first_rank + event.local_rank,
            event.local_rank,
            self.spec.node,
            event.pid,
            1 if raised else event.exit_code,
            None if raised else event.signal,
            event.error,
            event.step,
            stopping and not event.error,
        )

    # --- stopping ---------------------------------------------------------------------------------------------

    def _drain(
        self,
        reason: str,
        *,
        now: float,
        phase: NodePhase = NodePhase.DRAINING,
        signal_number: int = signal.SIGTERM,
        grace_s: float | None = None,
    ) -> list[Action]:
        """Ask the workers to end; kill them when the grace is over."""
        self.phase, self._reason = phase, reason
        if not self._alive:
            return [self._report(now=now), *self._sweep()]
        self._kill_at = now + (self.spec.drain_s if grace_s is None else grace_s)
        return [self._report(now=now), Forward(signal_number)]

    def _sweep(self) -> list[Action]:
        self._kill_at = None
        if self._sweeping:
            return []
        self._sweeping = True
        return [Sweep()]

    def _settle(self, *, now: float) -> list[Action]:
        """Nothing is alive on this node any more."""
        self._sweeping = False
        self._kill_at = None
        self._alive, self._pending, self._faults, self._dying = {}, set(), [], {}
        if self._exit_with is not None:
            if self.phase is not NodePhase.LEAVING:
                return [self._exit_with]
            self.phase = NodePhase.LEFT
            return [self._report(now=now), self._exit_with]
        clean = self.phase is NodePhase.RUNNING
        self.phase = NodePhase.SUCCEEDED if clean else NodePhase.READY
        return [self._report(now=now)]

    def _expire(self, *, now: float) -> list[Action]:
        actions: list[Action] = [Kill(self._alive[local]) for local, at in self._dying.items() if now >= at]
        self._dying = {local: at for local, at in self._dying.items() if now < at}
        if self._kill_at is not None and now >= self._kill_at:
            actions += self._sweep()
        fence_at = self._fence_at()
        if fence_at is not None and now >= fence_at:
            actions += self._go_silent(now=now)
        if self._give_up_at is not None and now >= self._give_up_at and self._end_job is not None:
            self._give_up_at = None
            self._exit_with = Exit(self._end_job, self._reason, None)
            actions += self._sweep()
        if now >= self._beat_at:
            actions.append(self._report(now=now))
        return actions

    def _go_silent(self, *, now: float) -> list[Action]:
        """The master has not answered for too long."""
        if self.spec.hosts_master:
            self._heard_at = now
            return [ReviveMaster()]
        self.phase = NodePhase.DRAINING
        self._reason = f"cut off from the master for {self.spec.rules.fence_s:g} s"
        return self._sweep()

    def _fence_at(self) -> float | None:
        if self.spec.hosts_master:
            # Nobody else can be given our ranks by a master that is stuck on our own node: no hurry.
            return self._heard_at + REVIVE_LEASES * self.spec.rules.lease_s
        exposed = self.phase in (*ACTIVE, NodePhase.DRAINING, NodePhase.LEAVING)
        return self._heard_at + self.spec.rules.fence_s if exposed and not self._sweeping else None

    def _pids(self) -> tuple[int, ...]:
        if self.phase not in ACTIVE or self._placement is None:
            return ()
        if self._pending and self.phase is NodePhase.RUNNING:
            return ()
        return tuple(self._alive.get(local, 0) for local in range(self._placement.num_workers))

    def _can_move(self) -> bool:
        """Whether what lives here can go on in another world."""
        known = self._attached | self._newcomers
        return bool(known) and not self._any_ended and all(pid in known for pid in self._alive.values())

    def _local_rank_of(self, pid: int) -> int | None:
        return next((local for local, each in self._alive.items() if each == pid), None)

    def _report(self, *, now: float) -> Report:
        self._seq += 1
        self._beat_at = self._next_beat(now=now)
        return Report(self._seq, self.status())

    def _next_beat(self, *, now: float) -> float:
        rules = self.spec.rules
        if not rules.heartbeat and self.phase in ACTIVE:
            return math.inf
        return now + rules.beat_s + rules.beat_spread_s * self.spec.draw()
