"""The workers of one node, as its agent sees them.

The agent obeys orders of growing generations only, reports its whole status whenever it changes and once a beat,
and stops its workers by itself when one fails, when the person at the terminal says so, or when it has not been
heard by the master for so long that somebody else may be given its ranks (`fence_s`).

No worker of a generation is alive once the status says `ready`: the last act of every generation is a sweep that
kills whatever the script left behind.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from holdfast.core.faults import signal_name
from holdfast.core.ids import Finish, NodePhase, NodeStatus, Order, Outcome, Placement, Run, Stop, WorkerFailure, World
from holdfast.spec.job import JobRules

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
class WorkersLaunched:
    """Always seen before the first `WorkerExited` of its generation."""

    generation: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerExited:
    generation: int
    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    error: str = ""


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
    | WorkersLaunched
    | LaunchFailed
    | WorkerExited
    | StoreDied
    | Swept
    | SignalReceived
    | TimePassed
)


# --- actions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    world: World
    placement: Placement


@dataclass(frozen=True, slots=True)
class Forward:
    """Send a signal to every live worker."""

    signal: int


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


Action = Launch | Forward | Sweep | Report | ReviveMaster | Exit


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What the worker group of one node has to know."""

    node: str
    rules: JobRules
    drain_s: float
    shutdown_s: float
    hosts_master: bool


class WorkerGroup:
    """One node's workers, through all generations."""

    def __init__(self, spec: GroupSpec, *, now: float) -> None:
        self.spec = spec
        self.phase = NodePhase.READY
        self.generation = 0
        self._alive: set[int] = set()
        self._pids: tuple[int, ...] = ()
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
        self._beat_at = now + spec.rules.beat_s
        self._kill_at: float | None = None
        self._give_up_at: float | None = None

    # --- the contract of every machine ------------------------------------------------------------------------

    def handle(self, event: Event, *, now: float) -> list[Action]:
        match event:
            case OrderReceived(order=Run(world=world)):
                return self._run(world, now=now)
            case OrderReceived(order=Stop() as stop):
                return self._obey_stop(stop, now=now)
            case OrderReceived(order=Finish(outcome=outcome)):
                return self._finish(outcome, now=now)
            case Heard():
                self._heard_at = max(self._heard_at, event.sent_at)
                return []
            case WorkersLaunched():
                return self._note_launch(event, now=now)
            case LaunchFailed():
                return self._note_launch_failure(event, now=now)
            case WorkerExited():
                return self._note_exit(event, now=now)
            case StoreDied():
                running = self.phase is NodePhase.RUNNING and event.generation == self.generation
                return self._drain("the workers' store died", now=now) if running else []
            case Swept():
                return self._settle(now=now)
            case SignalReceived():
                return self._obey_signal(event.number, now=now)
            case TimePassed():
                return self._expire(now=now)
        raise AssertionError(f"an event nobody handles: {event}")

    def next_deadline(self) -> float | None:
        dates = (self._beat_at, self._kill_at, self._give_up_at, self._fence_at())
        return min(date for date in dates if date is not None)

    def status(self) -> NodeStatus:
        idle = self.phase is NodePhase.READY
        generation = max(self.generation, self._floor) if idle else self.generation
        return NodeStatus(
            self.phase,
            generation,
            # Failures belong to the generation that ran, not to one that was called off before it started here.
            tuple(self._failures) if generation == self.generation else (),
            self._pids if self.phase is NodePhase.RUNNING else (),
            self._reason,
            self._end_job,
        )

    # --- orders -----------------------------------------------------------------------------------------------

    def _run(self, world: World, *, now: float) -> list[Action]:
        placement = world.placement_of(self.spec.node)
        stale = world.generation <= max(self.generation, self._floor)
        # Whoever was cut off for so long may have been replaced after this order was sent.
        cut_off = not self.spec.hosts_master and now >= self._heard_at + self.spec.rules.fence_s
        ending = self._exit_with is not None or self._end_job is not None
        if stale or cut_off or ending or placement is None or self.phase is not NodePhase.READY:
            return []
        self.phase, self.generation = NodePhase.RUNNING, world.generation
        self._world, self._placement = world, placement
        self._alive, self._pids, self._failures, self._reason = set(), (), [], ""
        return [Launch(world, placement)]

    def _obey_stop(self, stop: Stop, *, now: float) -> list[Action]:
        self._floor = max(self._floor, stop.generation)
        if self.generation > stop.generation or self.phase in (NodePhase.DRAINING, NodePhase.LEAVING):
            return []
        if self.phase is NodePhase.RUNNING:
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

    def _note_launch(self, event: WorkersLaunched, *, now: float) -> list[Action]:
        if event.generation != self.generation:
            return []
        self._alive, self._pids = set(range(len(event.pids))), event.pids
        if self.phase is not NodePhase.RUNNING:
            # Stopping began while they were being started.
            return [Forward(signal.SIGTERM)] if self._alive else []
        return [self._report(now=now)]

    def _note_launch_failure(self, event: LaunchFailed, *, now: float) -> list[Action]:
        if event.generation != self.generation or self._placement is None:
            return []
        self._failures.append(WorkerFailure(self._placement.first_rank, 0, self.spec.node, 0, error=event.reason))
        return self._drain(event.reason, now=now)

    def _note_exit(self, event: WorkerExited, *, now: float) -> list[Action]:
        if event.generation != self.generation or self._placement is None:
            return []
        self._alive.discard(event.local_rank)
        if event.exit_code != 0:
            self._failures.append(self._failure(event, self._placement))
        if self.phase is NodePhase.RUNNING and event.exit_code != 0:
            return self._drain("", now=now)
        if self._alive:
            return []
        return self._sweep()

    def _failure(self, event: WorkerExited, placement: Placement) -> WorkerFailure:
        stopping = self.phase is not NodePhase.RUNNING
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
        self._alive = set()
        if self._exit_with is not None:
            if self.phase is not NodePhase.LEAVING:
                return [self._exit_with]
            self.phase = NodePhase.LEFT
            return [self._report(now=now), self._exit_with]
        clean = self.phase is NodePhase.RUNNING
        self.phase = NodePhase.SUCCEEDED if clean else NodePhase.READY
        return [self._report(now=now)]

    def _expire(self, *, now: float) -> list[Action]:
        actions: list[Action] = []
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
        exposed = self.phase in (NodePhase.RUNNING, NodePhase.DRAINING, NodePhase.LEAVING)
        return self._heard_at + self.spec.rules.fence_s if exposed and not self._sweeping else None

    def _report(self, *, now: float) -> Report:
        self._seq += 1
        self._beat_at = now + self.spec.rules.beat_s
        return Report(self._seq, self.status())
