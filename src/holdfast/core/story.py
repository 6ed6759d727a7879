"""What happened to a job, as people read it at 3 a.m.: symptom, decision and why, actions, verdict.

Each record is emitted once by a decision; the terminal, the JSON lines and the HTTP stream are renderings of it.
`level` says who should look: `info` changes nothing for anybody, `warning` deserves a look, `error` is a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.core.faults import classify
from holdfast.core.health.story import CheckRound, NodeUnfit, StragglerFound, StragglerGone
from holdfast.core.ids import Outcome, Placement, WorkerFailure


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node registered with the master, or a new incarnation of it did."""

    kind: ClassVar[str] = "node_joined"
    level: ClassVar[str] = "info"
    node: str
    host: str
    pid: int
    num_workers: int
    pid_space: str = ""
    """Where that process id means anything: one boot of one machine, and one namespace."""

    def __str__(self) -> str:
        return f"node {self.node} joined with {self.num_workers} workers"


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """A node asked to join and was told no. Where that happens without end, not all of it is told."""

    kind: ClassVar[str] = "node_refused"
    level: ClassVar[str] = "warning"
    node: str
    reason: str

    def __str__(self) -> str:
        return f"node {self.node} refused: {self.reason}"


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone for good: its lease ran out, its agent died, or it left."""

    kind: ClassVar[str] = "node_lost"
    level: ClassVar[str] = "warning"
    node: str
    reason: str

    def __str__(self) -> str:
        return f"node {self.node} lost: {self.reason}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """No world can be formed yet, or a node is awaited in place of a lost one.

    Emitted when the reason changes; how many nodes are here, once a second at most.
    """

    kind: ClassVar[str] = "waiting"
    level: ClassVar[str] = "info"
    reason: str

    def __str__(self) -> str:
        return f"waiting: {self.reason}"


@dataclass(frozen=True, slots=True)
class RankTableIgnored:
    """The rank table does not fit those who came, so ranks were given automatically."""

    kind: ClassVar[str] = "rank_table_ignored"
    level: ClassVar[str] = "warning"
    reason: str

    def __str__(self) -> str:
        return f"warning: the rank table is not used, ranks are given automatically: {self.reason}"


@dataclass(frozen=True, slots=True)
class WorldFormed:
    """The next world was published to its nodes."""

    kind: ClassVar[str] = "world_formed"
    level: ClassVar[str] = "info"
    generation: int
    restart_count: int
    world_size: int
    placements: tuple[Placement, ...]
    reason: str

    def __str__(self) -> str:
        nodes = len(self.placements)
        return f"generation {self.generation}: {self.world_size} workers on {nodes} node{'s' * (nodes != 1)}"


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """A node started its workers."""

    kind: ClassVar[str] = "workers_started"
    level: ClassVar[str] = "info"
    generation: int
    node: str
    pids: dict[int, int]
    """Rank to process id."""
    since_failure_ms: float | None
    """From the failure that this generation repairs to this moment, on the master's clock; null at first."""

    def __str__(self) -> str:
        ranks = _span(sorted(self.pids))
        if self.since_failure_ms is None:
            return f"{ranks} started on {self.node}"
        return f"{ranks} started again on {self.node}, {self.since_failure_ms:.0f} ms after the failure was seen"


@dataclass(frozen=True, slots=True)
class Resumed:
    """No worker held the state, and all have looked for checkpoints: the step at which they begin, and why there."""

    kind: ClassVar[str] = "resumed"
    level: ClassVar[str] = "info"
    generation: int
    step: int
    """The first step that is done; that of the script, mostly 0, if no checkpoint is whole on every rank."""
    verdict: str
    """In words, with the directory, and with why no newer checkpoint counts."""

    def __str__(self) -> str:
        return self.verdict


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker ended badly. The first of a generation decides what happens next."""

    kind: ClassVar[str] = "worker_failed"
    level: ClassVar[str] = "warning"
    generation: int
    failure: WorkerFailure

    def __str__(self) -> str:
        failure = self.failure
        return f"rank {failure.rank} (pid {failure.pid} on {failure.node}) {classify(failure).evidence}"


@dataclass(frozen=True, slots=True)
class Stopping:
    """The decision about a generation that cannot go on: what follows, and why."""

    kind: ClassVar[str] = "stopping"
    level: ClassVar[str] = "warning"
    generation: int
    decision: str
    """`restart` or `finish`; `await` where it takes somebody else to start the workers again."""
    reason: str
    restarts_used: int
    max_restarts: int

    def __str__(self) -> str:
        if self.decision == "restart":
            return f"restarting all workers (restart {self.restarts_used} of {self.max_restarts})"
        if self.decision == "await":
            return f"all workers have to be started again: {self.reason}"
        return f"ending the job: {self.reason}"


@dataclass(frozen=True, slots=True)
class IncidentOpened:
    """A fault that is repaired while the other workers live: the symptom, the strategy and why it was chosen."""

    kind: ClassVar[str] = "incident_opened"
    level: ClassVar[str] = "warning"
    number: int
    """Counts the incidents of the job."""
    generation: int
    """The world that repairs it."""
    symptom: str
    """What was seen first, in words."""
    strategy: str
    """What is done about it: `retry`, `recover-in-place`, `recover`, `elastic-training` or `dump`."""
    reason: str
    """Why that strategy, and why not a finer one."""

    def __str__(self) -> str:
        return f"incident {self.number}: {self.symptom}; {self.strategy}: {self.reason}"


@dataclass(frozen=True, slots=True)
class IncidentClosed:
    """The verdict: every rank has committed a step in the repaired world, or the next incident came before."""

    kind: ClassVar[str] = "incident_closed"
    level: ClassVar[str] = "info"
    number: int
    """Of the incident that ends here."""
    verdict: str
    """`repaired`, `followed` by another incident, `dumped`: the last step was saved, or `failed`: the workers were
    stopped after all."""
    total_ms: float
    """From the fault being seen to the first step that all ranks committed, on the master's clock."""
    timings_ms: dict[str, float]
    """Phases of the slowest worker: unblock (a survivor) or replace (a newcomer), reconnect, state, rerun."""

    def __str__(self) -> str:
        phases = ", ".join(f"{name} {ms:.0f}" for name, ms in self.timings_ms.items())
        return f"incident {self.number} {self.verdict} in {self.total_ms:.0f} ms" + (f" ({phases})" if phases else "")


@dataclass(frozen=True, slots=True)
class Resizing:
    """The world is about to change because a node came or left; costs no restart from the budget."""

    kind: ClassVar[str] = "resizing"
    level: ClassVar[str] = "info"
    generation: int
    reason: str

    def __str__(self) -> str:
        return f"restarting all workers with another world: {self.reason}"


@dataclass(frozen=True, slots=True)
class MasterRestored:
    """The master died and was started again from its journal."""

    kind: ClassVar[str] = "master_restored"
    level: ClassVar[str] = "warning"
    generation: int

    def __str__(self) -> str:
        return f"master restored from its journal at generation {self.generation}"


@dataclass(frozen=True, slots=True)
class MasterMoved:
    """The master's node was lost; another node hosts it now, elected by most nodes of the world."""

    kind: ClassVar[str] = "master_moved"
    level: ClassVar[str] = "warning"
    term: int
    """Counts the masters of the job."""
    node: str
    """The node that hosts the master now."""
    lost: str
    """The node that did."""
    evidence: str
    """How that was seen."""
    voters: tuple[str, ...]
    """The nodes that have elected it."""

    def __str__(self) -> str:
        old = f"node {self.lost}" if self.lost else "its host"
        return f"master moved to node {self.node}, elected by {len(self.voters)}: {old} {self.evidence}"


@dataclass(frozen=True, slots=True)
class Isolated:
    """This master hears so few nodes that the others may go on without it."""

    kind: ClassVar[str] = "isolated"
    level: ClassVar[str] = "error"
    generation: int
    silent: tuple[str, ...]
    """The nodes that were given up for their silence."""
    num_nodes: int
    """Of the world."""

    def __str__(self) -> str:
        return (
            f"{len(self.silent)} of {self.num_nodes} nodes are silent ({', '.join(self.silent)}) and may go on "
            "without the others: these stop"
        )


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The last record of every job."""

    kind: ClassVar[str] = "job_finished"
    level: ClassVar[str] = "info"
    outcome: Outcome
    restarts: int

    def __str__(self) -> str:
        return f"job ended with exit code {self.outcome.exit_code}: {self.outcome.reason}"


Record = (
    NodeJoined
    | NodeRefused
    | NodeLost
    | Waiting
    | RankTableIgnored
    | WorldFormed
    | WorkersStarted
    | Resumed
    | WorkerFailed
    | Stopping
    | IncidentOpened
    | IncidentClosed
    | CheckRound
    | NodeUnfit
    | StragglerFound
    | StragglerGone
    | Resizing
    | MasterRestored
    | MasterMoved
    | Isolated
    | JobFinished
)


def _span(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {ranks[0]}-{ranks[-1]}"
