"""What happens to a job, and what it does about it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.core.ids import Address, Deputy, Mastership, NodeStatus, Order, World
from holdfast.core.story import Record
from holdfast.spec.job import SERVER_PREFIX, JobRules


@dataclass(frozen=True, slots=True)
class NodeRegistered:
    """An agent introduced itself."""

    node: str
    nonce: str
    host: str
    pid: int
    num_workers: int
    store: Address
    wanted_rank: int | None
    job_id: str
    nodes: tuple[int, int]
    """The agent's idea of (min_nodes, max_nodes)."""
    status: NodeStatus
    """An agent that lost its place and comes back may still have workers."""
    machine: str = ""
    """Equal for nodes that are on one machine."""
    agreed: dict[str, str] = field(default_factory=dict)
    """The agent's idea of the settings that all have to be told alike."""
    is_server: bool = False
    """It is a parameter server: it has a rank of its own kind, and no part in the world."""
    deputy: Address | None = None
    """Where it would host the master, if the node that does were lost."""
    pid_space: str = ""
    """Identifies the set of process ids that `pid` belongs to."""

    @property
    def name(self) -> str:
        """The id as its user has given it."""
        return self.node.removeprefix(SERVER_PREFIX) if self.is_server else self.node


@dataclass(frozen=True, slots=True)
class StatusReported:
    """An agent told its status; `seq` grows with each one it sends."""

    node: str
    nonce: str
    seq: int
    status: NodeStatus


@dataclass(frozen=True, slots=True)
class AgentDied:
    """There is proof that this incarnation is gone, so nobody has to wait for its lease."""

    node: str
    nonce: str
    evidence: str


@dataclass(frozen=True, slots=True)
class EndRequested:
    """Somebody wants the job to end now."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class MasterStarted:
    """A restarted master has replayed its journal and listens again."""


@dataclass(frozen=True, slots=True)
class Will:
    """What whoever takes over from a master has to know; every node holds the newest."""

    master: Mastership
    host: str
    """The node of the master that wrote it; empty if that is no node of the job."""
    world: World
    members: tuple[NodeRegistered, ...]
    """The nodes of the world that were there, in its order."""
    restarts_used: int
    num_incidents: int
    num_told: int
    """Entries of the story so far."""
    elapsed_s: float
    """How long the job has been going on."""

    deputies: tuple[Deputy, ...]
    """Who would take over, in this order."""

    @property
    def version(self) -> tuple[int, int]:
        return self.master.term, self.world.generation

    def brief(self) -> Will:
        """For nodes that would not take over: where to look for whoever does."""
        return replace(self, world=replace(self.world, placements=()), members=())


@dataclass(frozen=True, slots=True)
class Inherited:
    """This master takes over from one that was lost, by the will of most nodes."""

    will: Will
    master: Mastership
    heir: str
    """The node that hosts it."""
    voters: tuple[str, ...]
    dead: dict[str, str]
    """Nodes whose end is proven, and how."""
    evidence: str
    """How the loss of the other master was seen."""
    num_told: int
    """Entries of the story that some node has seen."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`next_deadline()` has come. `silent` is what `Job.silent` said then: renewals are not in the journal, so a
    replay could not find it out again."""

    silent: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()
    """Nodes of which nothing was heard for half a lease, if any are silent."""


Event = NodeRegistered | StatusReported | AgentDied | EndRequested | MasterStarted | Inherited | TimePassed


@dataclass(frozen=True, slots=True)
class Accept:
    node: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Refuse:
    node: str
    nonce: str
    reason: str
    retry_after_s: float | None
    """None when asking again cannot help."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell an agent that it was heard: it counts its own lease from when it sent `seq`."""

    node: str
    nonce: str
    seq: int


@dataclass(frozen=True, slots=True)
class Tell:
    node: str
    nonce: str
    order: Order


@dataclass(frozen=True, slots=True)
class Bequeath:
    """Give this node, or all if it is empty, the newest will."""

    nonce: str = ""


@dataclass(frozen=True, slots=True)
class Tale:
    """Add a record to the job's story."""

    record: Record


Action = Accept | Refuse | Acknowledge | Tell | Bequeath | Tale


def changes_nothing(event: Event, actions: list[Action], *, rules: JobRules) -> bool:
    """Whether an event that led to these actions left the job as it was, so that it need not be durable: strangers can
    cause any number of such events."""
    if actions:
        return all(isinstance(action, Refuse) for action in actions)
    # Where nobody watches, a death is only remembered.
    return isinstance(event, TimePassed) or (isinstance(event, AgentDied) and rules.heartbeat)
