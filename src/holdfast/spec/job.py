"""The specification of a job, resolved once and passed explicitly.

`JobRules` is what the master needs to decide; `NodeSpec` is what one node needs to run its share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.spec.strategy import Strategy
from holdfast.spec.tls import TlsSpec

MARKER = "HOLDFAST_RUN"
"""Variable that everything below the warm interpreter inherits; its value names the run."""

REJECTION_WINDOW, RANK_TABLE = "HOLDFAST_REJECTION_WINDOW", "HOLDFAST_RANK_TABLE_FILE"
"""Variables of settings that only the master of a cluster is told."""

SERVER_PREFIX = "server-"
"""In front of the id of every parameter server: they have the same numbers as workers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRules:
    """What every node of a job must agree on."""

    job_id: str
    min_nodes: int = 1
    max_nodes: int = 1
    workers_per_node: int | None = None
    """How many workers each node has to have; null: any number."""
    max_restarts: int = 3
    """Restarts after a failure, for the whole job, within `restart_window_s`; the next failure ends the job."""
    why_no_restarts: str = "restarts are off (--max-restarts 0)"
    """Why there are none, where `max_restarts` is 0, in the words of whoever has set that."""
    strategies: tuple[Strategy, ...] = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.EXIT)
    """How a fault may be repaired; finest first."""
    max_repairs: int = 1000
    """Repairs within an hour; they cost a step each, so the limit only stops a job that spins."""
    restart_window_s: float | None = 3600.0
    """Failures older than this are forgiven, so a month-long job is not ended by its fourth bad day; null: none is."""
    join_timeout_s: float = 600.0
    """From the moment too few nodes are there; on expiry the job ends and says how many came."""
    repair_timeout_s: float = 1800.0
    """From a repaired world to the first step that all its ranks have committed; on expiry the last step is saved, if
    that is allowed, and all workers start again. Processes may have to import torch on a busy machine and receive a
    large state, and a survivor may be evaluating meanwhile; a collective of gloo would wait as long."""
    last_call_s: float = 5.0
    """How long the door stays open once `min_nodes` have joined; a latecomer costs everyone a restart."""
    beat_s: float = 1.0
    """How often an agent tells the master its status when nothing happens."""
    beat_spread_s: float = 0.0
    """Up to so much is added to each beat, at random: so that many nodes do not all beat at once."""
    heartbeat: bool = True
    """Whether nodes that have formed a world are watched; if not, none is given up for its silence or its death."""
    lease_s: float = 5.0
    """Silence after which the master gives a node up; long enough to survive a few lost beats."""
    max_spares: int = 1024
    """Nodes beyond `max_nodes` that may wait for a place; a bound, not a limit anybody should meet."""
    awaits_rank: bool = False
    """Whether somebody replaces nodes that are gone: then one waits for the rank it wants while another holds it,
    and is not refused; and who holds up the others makes way, though there is no spare."""
    rejection_s: float | None = None
    """Silence of a node after which another one may take its id, before it is given up; null: never."""
    num_servers: int = 0
    """Parameter servers that have to be there too; they have ranks of their own and no part in any world."""
    by_address: bool = False
    """Whether ranks follow from the nodes' addresses and ids, rather than from their host names."""
    rank_table: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Address to ranks, as planned; used if it fits those who come."""
    agreed: dict[str, str] = field(default_factory=dict)
    """Settings by name that every node has to be told alike."""
    network_check: bool = False
    """Whether nodes are checked before they are used."""
    exclude_straggler: bool = False
    """Whether slow nodes are replaced, and not only reported."""
    store: tuple[str, int] | None = None
    """Where the workers of every world find each other; None leaves it to the first node of each."""
    stop_timeout_s: float = 60.0
    """From the order to stop until a node that has not stopped its workers is given up."""

    @property
    def lasting(self) -> dict[str, str]:
        """What a master that is started again has to be told as before: else it would not decide as it did."""
        window = "none" if self.rejection_s is None else f"{self.rejection_s:g}"
        seats = (f"{address}={','.join(map(str, ranks))}" for address, ranks in sorted(self.rank_table.items()))
        return {**self.agreed, REJECTION_WINDOW: window, RANK_TABLE: " ".join(seats) or "none"}

    @property
    def is_launched(self) -> bool:
        """Whether somebody starts the workers of each node; in a cluster that forms itself, nobody does."""
        return self.store is None

    @property
    def replaces(self) -> bool:
        """Whether a lost node's place may be taken while the others wait."""
        return self.max_spares > 0 or Strategy.RECOVER in self.strategies

    @property
    def fence_s(self) -> float:
        """Silence after which an agent kills its own workers: always before the master replaces them."""
        return self.lease_s * 0.9 if self.heartbeat else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What each worker runs."""

    how: str
    """`script`, `module`, `run_path` or `program` (no Python in front)."""
    target: str
    args: tuple[str, ...] = ()
    python: str = ""

    def argv(self) -> list[str]:
        """The command line as `ps` would show it without a launcher."""
        if self.how == "program":
            return [self.target, *self.args]
        flag = ["-m"] if self.how == "module" else []
        return [self.python, "-u", *flag, self.target, *self.args]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSpec:
    """Where the workers' output goes. Streams are numbered as torchrun numbers them: 1 out, 2 err, 3 both."""

    log_dir: str | None = None
    run_dir: str | None = None
    """Where the files of a run lie of which nothing is kept."""
    redirects: dict[int, int] = field(default_factory=dict)
    tee: dict[int, int] = field(default_factory=dict)
    shown_local_ranks: tuple[int, ...] | None = None
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    prefix_template: str | None = None

    @property
    def kept(self) -> bool:
        """Whether anything is written that somebody may want to read afterwards."""
        streams = any(self.redirects.values()) or any(self.tee.values())
        return self.log_dir is not None or streams or bool(self.stdout_filters or self.stderr_filters)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """What one node runs and how it reaches the others."""

    rules: JobRules
    command: Command
    num_workers: int
    logs: LogSpec
    role: str = "default"
    node_name: str | None = None
    """What this node is called; None makes a name from that of the machine."""
    node_rank: int | None = None
    """The rank the user gave this node; None lets the master choose."""
    host: str = "127.0.0.1"
    port: int = 0
    """Where the master listens; 0 means any free port, for a job of one node."""
    managed: bool = False
    """A TaskD manager, or a submitter, runs the master: this node never does, and waits for it."""
    never_master: bool = False
    """Nor does this node stand for election when the master is lost: whoever runs it starts it again."""
    store_port: int = 0
    """Port of the workers' store when this node hosts it (MASTER_PORT); 0 means any free one."""
    local_addr: str | None = None
    token: str | None = None
    tls: TlsSpec | None = None
    warm: bool = True
    """Fork workers from an interpreter that has already imported torch."""
    cold_reason: str = ""
    """Why `warm` is off, for the log; empty when the user said so or it is on."""
    drain_s: float = 5.0
    """From SIGTERM to SIGKILL when workers are restarted. A worker without a SIGTERM handler is gone at once;
    one that is stopped or stuck is killed when this ends."""
    shutdown_s: float = 30.0
    """The same when the job is asked to stop: long enough to write a checkpoint."""
    standby: int = 0
    """Workers that have run the script up to its loop and wait there for a rank."""
    hang_floor_s: float = 5.0
    """A rank that does not get on while others wait for it is given at least this long..."""
    hang_ceiling_s: float = 600.0
    """...and at most this long; in between, ten times the pace of the steps seen so far."""
    hang_asked: bool = False
    """The user named these limits: scripts without the SDK are held to them too, by the steps of their optimizers."""
    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    events_file: str | None = None
    marker: str = ""
    """Names this run in the environment of everything it starts, so that nothing of it can hide."""
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    omp_num_threads: str | None = None
    """Set for the workers when several share a node and the user set nothing."""
    env: dict[str, str] = field(default_factory=dict)
    """The environment the user started us in; workers get it plus their own variables."""

    @property
    def single(self) -> bool:
        """A job of one node: nothing outside this machine has to find it."""
        return self.rules.max_nodes == 1
