"""The words of the system, one meaning each.

node        a machine, or a share of one; it has one agent.
worker      one process of the user's script.
world       an immutable map of ranks to workers. It is never changed, only followed by the next one.
generation  the number of a world. It only grows; whatever carries an older one is refused.
group rank  a node's number in its world. Kept by a node across generations as long as the world has room for it.
rank        a worker's number in its world: the nodes' workers counted in order of group rank.
local rank  a worker's number on its node; never changes.
nonce       identifies one incarnation of an agent: the same nonce again is a reconnect, another one a restart.
lease       how long silence is tolerated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.core.health.results import CheckResult, NodePace


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, as a peer would dial it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Mastership:
    """One master, through all its restarts in place."""

    term: int
    """Counts the masters of a job."""
    id: str
    """Tells two masters of one term apart: one that is new at an old address, or two that stand for election."""


@dataclass(frozen=True, slots=True)
class Deputy:
    """A node that would host the master, and where."""

    node: str
    address: Address


@dataclass(frozen=True, slots=True)
class Placement:
    """One node's share of a world."""

    node: str
    group_rank: int
    first_rank: int
    num_workers: int
    host: str = ""
    machine: str = ""
    """Equal for nodes that are on one machine, whatever its name."""


@dataclass(frozen=True, slots=True)
class World:
    """Who runs which ranks, and where the workers find their store."""

    generation: int
    restart_count: int
    placements: tuple[Placement, ...]
    store: Address
    repairs: bool = False
    """Workers that live stay, and move from the world before into this one."""
    dumps: bool = False
    """Its workers save their state and train no more."""
    servers: tuple[str, ...] = ()
    """The nodes of parameter servers, by their rank among themselves."""

    @property
    def size(self) -> int:
        return sum(placement.num_workers for placement in self.placements)

    def placement_of(self, node: str) -> Placement | None:
        return next((placement for placement in self.placements if placement.node == node), None)


class NodePhase(StrEnum):
    """What a node's workers are doing."""

    READY = "ready"
    """No worker is alive; the node would take part in the next world."""
    RUNNING = "running"
    BROKEN = "broken"
    """Workers of the stated generation are lost or have failed a step; the others live and can join another world."""
    DRAINING = "draining"
    """Workers of the stated generation are being stopped."""
    SUCCEEDED = "succeeded"
    """Every worker of the stated generation ended with 0."""
    LEAVING = "leaving"
    """The node is going away: its workers are being stopped, and it takes no further world."""
    LEFT = "left"
    """The node has gone away: no worker is alive, and its agent ends."""


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """How one worker ended badly. Exactly one of `exit_code` and `signal` is set, unless it never started."""

    rank: int
    local_rank: int
    node: str
    pid: int
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    """Traceback, or whatever the worker left behind about its end."""
    step: int | None = None
    """The step it was in, where that is known."""
    stopped_by_us: bool = False
    """It ended after we had begun to stop the workers, so it is no cause of anything."""


@dataclass(frozen=True, slots=True)
class StepFault:
    """A step that failed on a rank whose process lives."""

    rank: int
    node: str
    step: int
    kind: str
    error: str


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a world begins whose workers are all new and have looked for checkpoints."""

    generation: int
    step: int
    verdict: str
    """In words, with why no newer one counts."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Everything the master needs to know of a node; sent whole each time, so a lost one does no harm."""

    phase: NodePhase
    generation: int
    failures: tuple[WorkerFailure, ...] = ()
    pids: tuple[int, ...] = ()
    """By local rank, while the node has workers; 0 stands for one that is not there."""
    reason: str = ""
    """Why the node is draining or leaving, when that is not a worker's failure."""
    end_job: int | None = None
    """Set when the person at this node wants the whole job to end, with this exit code."""
    attached: bool = False
    """Every worker that lives uses the SDK, and none has ended well: they can be told to join another world."""
    faults: tuple[StepFault, ...] = ()
    committed: int = 0
    """The newest generation in which every worker here has committed a step."""
    timings_ms: dict[str, float] = field(default_factory=dict)
    """What the last repair cost the slowest worker here, by phase."""
    parked: int = 0
    """Processes that have run the script up to its loop and wait there for a rank."""
    check: CheckResult | None = None
    """What the newest round of a check has shown so far."""
    pace: NodePace | None = None
    resumption: Resumption | None = None
    """Told by the node of rank 0."""
    holds: bool = False
    """Its workers are to end, and save the last step first, unless the master says that others have it."""
    saves: bool = False
    """Workers here have committed a step, and could save it for all ranks."""
    called_off: bool = False
    """Its workers were stopped because the master was not heard, or ordered so."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended."""

    exit_code: int
    reason: str
    root_cause: WorkerFailure | None = None
    consequences: tuple[WorkerFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Start the workers of this world."""

    world: World


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have as many processes wait at their loop as this node has workers, to join this world or a later one."""

    world: World


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop every worker of this generation and older ones."""

    generation: int
    reason: str
    at_once: bool = False
    """Without grace: others may be given their ranks."""
    saves: bool = False
    """Save the last step first: else it is lost."""


@dataclass(frozen=True, slots=True)
class PairTest:
    """One all-reduce with one other node."""

    peer: str
    store: Address
    """Where the two meet; the one that leads serves there."""
    leads: bool
    slot: int
    """Its place in the order of the tests of a group: each has its time, so that nobody is late for one because
    another one failed."""
    shares_machine: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """Find out how fast this node is, and whether others can be reached from it."""

    check_id: int
    """Grows with each check; what an older one found out is refused."""
    round: int
    """1 or 2."""
    address: str
    """Of this node, as the others dial it."""
    tests: tuple[PairTest, ...] = ()
    """With those who have done their own part. None yet: this node has to do its own part first."""

    @property
    def key(self) -> tuple[int, int, bool]:
        return self.check_id, self.round, bool(self.tests)


@dataclass(frozen=True, slots=True)
class Leave:
    """This node is of no use to the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over."""

    outcome: Outcome


Order = Run | Prepare | Stop | Check | Leave | Finish
