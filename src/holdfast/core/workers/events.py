"""What an agent hears about its node, and what it has done for its workers."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.health.results import CheckResult, NodePace
from holdfast.core.ids import Check, NodeStatus, Order, Outcome, Placement, Resumption, World

# --- events ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderReceived:
    order: Order


@dataclass(frozen=True, slots=True)
class Heard:
    """The master has answered something that was sent at `sent_at`, or is known to be dead since then."""

    sent_at: float


@dataclass(frozen=True, slots=True)
class MasterHosted:
    """The master is on this node from now on, or no longer."""

    here: bool


@dataclass(frozen=True, slots=True)
class MasterDied:
    """The process of the master on this node has ended; it is started again."""


@dataclass(frozen=True, slots=True)
class Bequeathed:
    """Other nodes could host the master, were it lost."""


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
    saves: bool = False
    """Whether it could save its state for all."""


@dataclass(frozen=True, slots=True)
class NoticeHeeded:
    """A worker that was given notice has saved its state, or has nothing to save."""

    pid: int


@dataclass(frozen=True, slots=True)
class StateLost:
    """No rank of this generation holds a state that could be resumed from."""

    generation: int


@dataclass(frozen=True, slots=True)
class StateSought:
    """The workers of a new world have looked for checkpoints."""

    found: Resumption


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
class Probed:
    """What the probe of a check has found out so far, or why it has found out nothing."""

    result: CheckResult


@dataclass(frozen=True, slots=True)
class Paced:
    """The pace of this node's ranks is worth telling."""

    pace: NodePace


@dataclass(frozen=True, slots=True)
class SignalReceived:
    number: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`next_deadline()` has come."""


Event = (
    OrderReceived
    | Heard
    | MasterHosted
    | MasterDied
    | Bequeathed
    | WorkerStarted
    | LaunchFailed
    | WorkerAttached
    | Parked
    | StepFailed
    | WorkerRaised
    | StepCommitted
    | NoticeHeeded
    | StateLost
    | StateSought
    | WorkerExited
    | StoreDied
    | Swept
    | Probed
    | Paced
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
class GiveNotice:
    """Tell a worker to save its state after the step it is in, and to answer `NoticeHeeded`."""

    pid: int
    patience_s: float
    """How long it may take to the end of the step; then the step is given up, and the one before is saved."""


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
class Probe:
    """Run the probe of this check, in place of an older one that is still at work."""

    check: Check


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


Action = Launch | Park | Invite | GiveNotice | Forward | Kill | Sweep | Probe | Report | ReviveMaster | Exit
