"""The life of one job, as the master sees it.

Nodes report their whole status; the master holds one wish for each node and repeats it whenever a status shows
that the wish has not been met. So a message that is lost, doubled or late does no harm, and a master that was
restarted only has to listen. Orders that are durable precede orders that are sent: a shell writes an event to the
journal before it performs the actions that follow from it.

What is not here: sockets, processes, and how long anything really takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.core.admission import Objection, object_to_id, object_to_number, object_to_settings
from holdfast.core.budget import Budget
from holdfast.core.faults import FaultKind, classify, exit_code_of, find_root_cause
from holdfast.core.ids import (
    Address,
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
from holdfast.core.leases import Leases
from holdfast.core.recovery import ladder
from holdfast.core.recovery.ladder import Plan, Situation
from holdfast.core.rendezvous import Candidate, Decision, choose, decide_world, describe_absence, place, seat_by_table
from holdfast.core.story import (
    IncidentClosed,
    IncidentOpened,
    JobFinished,
    MasterRestored,
    NodeJoined,
    NodeLost,
    NodeRefused,
    RankTableIgnored,
    Record,
    Resizing,
    Stopping,
    Waiting,
    WorkerFailed,
    WorkersStarted,
    WorldFormed,
)
from holdfast.spec.job import JobRules
from holdfast.spec.strategy import Strategy

MAX_IN_A_ROW = 20
"""Repairs without a single committed step between them: what comes next would not hold either."""

REFUSALS_TOLD, REFUSALS_WINDOW_S = 100, 3600.0
"""So many refusals are told of in so long. All are answered, but a node that asks for ever must not fill the story."""

SERVER_PREFIX = "server-"
"""In front of the id of every parameter server: they have the same numbers as workers."""

DUMP_S = 600.0
"""For the last step to be saved; afterwards the workers are stopped without it."""

SETTLE_S = 0.3
"""A worker that lost a peer is believed to be the only one hurt after so long without news of a loss."""

# --- events ---------------------------------------------------------------------------------------------------


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
class TimePassed:
    """`next_deadline()` has come. `silent` is what `Job.silent` said then: renewals are not in the journal, so a
    replay could not find it out again."""

    silent: tuple[str, ...] = ()


Event = NodeRegistered | StatusReported | AgentDied | EndRequested | MasterStarted | TimePassed


# --- actions --------------------------------------------------------------------------------------------------


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
class Tale:
    """Add a record to the job's story."""

    record: Record


Action = Accept | Refuse | Acknowledge | Tell | Tale


def changes_nothing(event: Event, actions: list[Action], *, rules: JobRules) -> bool:
    """Whether an event that led to these actions left the job as it was, so that it need not be durable: strangers can
    cause any number of such events."""
    if actions:
        return all(isinstance(action, Refuse) for action in actions)
    # Where nobody watches, a death is only remembered.
    return isinstance(event, TimePassed) or (isinstance(event, AgentDied) and rules.heartbeat)


# --- state ----------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"


@dataclass(slots=True)
class Member:
    """A live node."""

    registered: NodeRegistered
    status: NodeStatus
    seq: int = 0
    ready_at: float | None = None
    previous_rank: int | None = None
    placed_in: int | None = None
    """The last generation in which this incarnation had a place."""
    is_dead: bool = False
    """There is proof of its end, in a job that does not watch its nodes."""

    @property
    def nonce(self) -> str:
        return self.registered.nonce


class Job:
    """One job: who is in it, what it is doing, and what it does next."""

    def __init__(self, rules: JobRules, *, now: float, sole_nonce: str | None = None) -> None:
        self.rules = rules
        self.phase = Phase.GATHERING
        self.generation = 0
        self.restart_count = 0
        self.world: World | None = None
        self.outcome: Outcome | None = None
        self.members: dict[str, Member] = {}
        self.waiting_reason = ""
        self._sole_nonce = sole_nonce
        self._leases = Leases(rules.lease_s)
        self._budget = Budget(rules.max_restarts, window_s=rules.restart_window_s)
        self._gather_until: float | None = now + rules.join_timeout_s
        self._decide_at: float | None = None
        self._stop_until: float | None = None
        self._grow_at: float | None = None
        self._outcome_after_stop: Outcome | None = None
        self._ending = False
        self._blame_worker = False
        self._failures: list[WorkerFailure] = []
        self._failed_at: float | None = None
        self._succeeded: set[str] = set()
        self._started: set[str] = set()
        self._committed: set[str] = set()
        self._pids: dict[str, tuple[int, ...]] = {}
        self._repairs = Budget(rules.max_repairs, window_s=rules.restart_window_s)
        self._refusals = Budget(REFUSALS_TOLD, window_s=REFUSALS_WINDOW_S)
        self._settle_until: float | None = None
        self._last_signature: tuple[int, str] | None = None
        self._incident: IncidentOpened | None = None
        self._vacant: set[str] = set()
        """Lost nodes of the current world whose ranks wait for another node."""
        self._vacant_until: float | None = None
        self._in_a_row = 0
        self._after_dump: tuple[str, bool] | None = None
        """While the last step is being saved: why all are stopped then, and whether they may be started again."""
        self._dump_until: float | None = None
        self._replaced: set[str] = set()
        """Nonces of incarnations whose id another one has taken while they may have lived."""
        self.incidents = 0

    # --- the contract of every machine ------------------------------------------------------------------------

    def handle(self, event: Event, *, now: float) -> list[Action]:
        match event:
            case NodeRegistered():
                actions = self._register(event, now=now)
            case StatusReported():
                if self.is_old_news(event):
                    return self._hear(event, now=now)
                actions = self._take_status(event, now=now)
            case AgentDied():
                member = self.members.get(event.node)
                known = member is not None and member.nonce == event.nonce and self.phase is not Phase.FINISHED
                if member is not None and known and not self._is_watching():
                    member.is_dead, known = True, False
                actions = self._lose(event.node, event.evidence, now=now) if known else []
            case EndRequested():
                actions = self._end(event.exit_code, event.reason, now=now)
            case MasterStarted():
                actions = self._resume(now=now)
            case TimePassed():
                actions = self._expire(event.silent, now=now)
        return actions + self._advance(now=now)

    def is_old_news(self, event: StatusReported) -> bool:
        """Whether a status only shows that its node is alive: it changes no more than a lease, so it need not be
        durable, and a deadline that has passed waits for `TimePassed`."""
        member = self.members.get(event.node)
        if member is None or member.nonce != event.nonce:
            return False
        return event.seq <= member.seq or event.status == member.status

    def silent(self, *, now: float) -> tuple[str, ...]:
        """Nodes whose lease has run out."""
        ignored = self.phase is Phase.FINISHED or not self._is_watching()
        return () if ignored else tuple(self._leases.expired(now=now))

    def next_deadline(self) -> float | None:
        """When `TimePassed` is due; None when only an event can change anything."""
        if self.phase is Phase.FINISHED:
            return None
        dates = (
            self._leases.next_deadline() if self._is_watching() else None,
            self._gather_until,
            self._decide_at,
            self._stop_until,
            self._grow_at,
            self._settle_until,
            self._vacant_until,
            self._dump_until,
        )
        return min((date for date in dates if date is not None and date < math.inf), default=None)

    # --- events -----------------------------------------------------------------------------------------------

    def _register(self, event: NodeRegistered, *, now: float) -> list[Action]:
        holder = self.members.get(event.node)
        if holder is not None and holder.nonce == event.nonce:
            self._leases.renew(event.node, now=now)
            return [Accept(event.node, event.nonce), *self._remind(holder)]
        reason, retry_after_s = self._objection(event, holder, now=now)
        if reason:
            refusal = Refuse(event.node, event.nonce, reason, retry_after_s)
            return [Tale(NodeRefused(event.node, reason)), refusal] if self._refusals.spend(now=now) else [refusal]
        actions = [] if holder is None else self._replace(holder, event, now=now)
        ready = event.status.phase is NodePhase.READY
        member = Member(event, event.status, ready_at=now if ready else None)
        self.members[event.node] = member
        self._leases.renew(event.node, now=now)
        if event.is_server:
            self._appoint(event.node)
        joined = NodeJoined(event.node, event.host, event.pid, event.num_workers)
        return [*actions, Accept(event.node, event.nonce), Tale(joined)]

    def _objection(self, event: NodeRegistered, holder: Member | None, *, now: float) -> Objection:
        """Why a newcomer cannot join and when to ask again, or an empty reason."""
        if self.phase is Phase.FINISHED:
            return "the job has ended", None
        if event.nonce in self._replaced:
            return f"another process has taken node id {event.name!r}", None
        if reason := object_to_settings(event, self.rules):
            return reason, None
        if self._sole_nonce is not None and event.nonce != self._sole_nonce:
            return "this job runs on one node only; start it with --nnodes and --rdzv-endpoint to use more", None
        if holder is not None:
            if holder.is_dead and self.rules.replaces:
                return "", None
            silence_s = self._leases.silence_s(event.node, now=now)
            return object_to_id(event, holder.registered, self.rules, silence_s=silence_s)
        return object_to_number(event, [m.registered for m in self._members(is_server=event.is_server)], self.rules)

    def _replace(self, holder: Member, newcomer: NodeRegistered, *, now: float) -> list[Action]:
        """Another incarnation has waited long enough for an id: whoever holds it has to go."""
        self._replaced.add(holder.nonce)
        reason = f"pid {newcomer.pid} on {newcomer.host} has taken node id {newcomer.name!r}"
        return [Refuse(newcomer.node, holder.nonce, reason, None), *self._lose(newcomer.node, reason, now=now)]

    def _appoint(self, node: str) -> None:
        """A server that comes when the world is formed has the rank it had, or that of a lost one."""
        if self.world is None or node in self.world.servers:
            return
        vacant = next(name for name in self.world.servers if name not in self.members)
        servers = tuple(node if name == vacant else name for name in self.world.servers)
        self.world = replace(self.world, servers=servers)

    def _take_status(self, event: StatusReported, *, now: float) -> list[Action]:
        member = self.members.get(event.node)
        if member is None or member.nonce != event.nonce:
            # It was given up: its workers are fenced by now, and it has to register again.
            return [Refuse(event.node, event.nonce, "not registered; register again", 0.0)]
        self._leases.renew(event.node, now=now)
        heard: list[Action] = [Acknowledge(event.node, event.nonce, event.seq)]
        member.seq, old, member.status = event.seq, member.status, event.status
        became_ready = event.status.phase is NodePhase.READY
        if not became_ready:
            member.ready_at = None
        elif member.ready_at is None:
            member.ready_at = now
        actions = heard + self._note_start(member, now=now) + self._judge(member, old, now=now)
        return actions + self._remind(member)

    def _hear(self, event: StatusReported, *, now: float) -> list[Action]:
        member = self.members[event.node]
        member.seq = max(member.seq, event.seq)
        self._leases.renew(event.node, now=now)
        return [Acknowledge(event.node, event.nonce, event.seq), *self._remind(member)]

    def _note_start(self, member: Member, *, now: float) -> list[Action]:
        status, node, world = member.status, member.registered.node, self.world
        if world is None or status.phase is not NodePhase.RUNNING or status.generation != world.generation:
            return []
        if status.committed == world.generation:
            self._committed.add(node)
        placement = world.placement_of(node)
        if node in self._started or placement is None or len(status.pids) < placement.num_workers:
            return []
        self._started.add(node)
        known, self._pids[node] = self._pids.get(node, ()), status.pids
        pids = {placement.first_rank + n: pid for n, pid in enumerate(status.pids) if pid not in known}
        if not pids:
            return []
        since_ms = None if self._failed_at is None else (now - self._failed_at) * 1000
        if len(self._started) == len(world.placements) and self._incident is None:
            self._failed_at = None
        return [Tale(WorkersStarted(world.generation, node, pids, since_ms))]

    def _judge(self, member: Member, old: NodeStatus, *, now: float) -> list[Action]:
        """What a node's new status means for the current generation."""
        status, node = member.status, member.registered.node
        if self.phase is Phase.FINISHED:
            return []
        if status.end_job is not None and not self._ending:
            return self._end(status.end_job, status.reason, now=now)
        if status.phase in (NodePhase.LEAVING, NodePhase.LEFT):
            return self._let_go(member, now=now)
        if not self._is_current(member) or status.generation != self.generation:
            return []
        tales: list[Action] = []
        for failure in status.failures[len(old.failures) if old.generation == status.generation else 0 :]:
            self._failures.append(failure)
            if not failure.stopped_by_us:
                tales.append(Tale(WorkerFailed(self.generation, failure)))
        if self.phase is not Phase.RUNNING:
            return tales
        if status.phase is NodePhase.SUCCEEDED:
            self._succeeded.add(node)
        elif status.phase is NodePhase.BROKEN:
            return tales + self._face(member, now=now)
        elif status.phase in (NodePhase.DRAINING, NodePhase.READY):
            return tales + self._fail(self._symptom(member), now=now)
        return tales

    def _face(self, member: Member, *, now: float) -> list[Action]:
        """Workers are lost or failed a step, and others live: repair the world, or stop it."""
        if self._after_dump is not None:
            return self._end_dump(f"the last step was not saved: {self._symptom(member)}", now=now)
        if self._vacant:
            # They are all repaired together, once the world is whole again.
            return []
        status = member.status
        only_communication = not status.failures and all(fault.kind == "communication" for fault in status.faults)
        if only_communication and not self._is_watching() and not self.rules.replaces:
            # A peer is gone, and nobody wants to know.
            return []
        if only_communication and self._settle_until is None:
            # Whoever lost a peer says so before the loss itself is known; give the loss time to show.
            self._settle_until = now + SETTLE_S
        if only_communication and self._settle_until is not None and now < self._settle_until:
            return []
        return self._repair(now=now)

    def _repair(self, *, now: float) -> list[Action]:
        assert self.world is not None, "a running job has a world"
        self._settle_until = None
        placed = [self.members[p.node].status for p in self.world.placements if p.node in self.members]
        failures = [failure for status in placed for failure in status.failures]
        faults = [fault for status in placed for fault in status.faults]
        root, _ = find_root_cause(failures)
        fault = min(faults, key=lambda f: (f.kind == "communication", f.rank), default=None)
        symptom = f"rank {root.rank} {classify(root).evidence}" if root else _describe(fault)
        signature = _signature(root, fault)
        situation = Situation(
            num_lost=len(failures),
            num_alive=sum(1 for status in placed for pid in status.pids if pid),
            all_attached=len(placed) == len(self.world.placements) and all(s.attached for s in placed),
            repeated=signature is not None and signature == self._last_signature,
            repairs_left=self._repairs.used(now=now) < self._repairs.limit and self._in_a_row < MAX_IN_A_ROW,
        )
        self._last_signature = signature
        plan = ladder.choose(situation, allowed=self.rules.strategies)
        if plan.strategy is Strategy.EXIT:
            return self._fail(f"{symptom} ({plan.reason})", now=now, restartable=plan.restartable)
        if plan.strategy is Strategy.DUMP:
            return self._dump(symptom, plan, [p.node for p in self.world.placements], now=now)
        return [*self._open_incident(symptom, plan, now=now), *self._publish_repair(self.world.placements)]

    def _open_incident(self, symptom: str, plan: Plan, *, now: float) -> list[Action]:
        self._repairs.spend(now=now)
        self.incidents += 1
        self._in_a_row += 1
        closed = self._close_incident("followed", now=now)
        self._failed_at = now
        self._incident = IncidentOpened(self.incidents, self.generation + 1, symptom, plan.strategy.value, plan.reason)
        return [*closed, Tale(self._incident)]

    def _publish_repair(self, placements: tuple[Placement, ...], *, dumps: bool = False) -> list[Action]:
        """The world again, with these nodes; who lives in it goes on."""
        assert self.world is not None, "a running job has a world"
        self.generation += 1
        store = self._store_of(self.world.store)
        if placements[0].node != self.world.placements[0].node:
            store = self._store_of(self.members[placements[0].node].registered.store)
        self.world = replace(
            self.world, generation=self.generation, placements=placements, store=store, repairs=True, dumps=dumps
        )
        for placement in placements:
            member = self.members[placement.node]
            member.previous_rank, member.placed_in = placement.group_rank, self.generation
        self._started, self._committed, self._failures = set(), set(), []
        return self._remind_all()

    # --- the last step ----------------------------------------------------------------------------------------

    def _dump(self, symptom: str, plan: Plan, nodes: list[str], *, now: float) -> list[Action]:
        """Have these nodes save the last step, before all are stopped."""
        self._after_dump, self._dump_until = (symptom, plan.restartable), now + DUMP_S
        return [*self._open_incident(symptom, plan, now=now), *self._publish_repair(self._places(nodes), dumps=True)]

    def _end_dump(self, trouble: str, *, now: float) -> list[Action]:
        assert self._after_dump is not None, "a step is being saved"
        symptom, restartable = self._after_dump
        closed = self._close_incident("failed" if trouble else "dumped", now=now)
        reason = f"{symptom}; {trouble or 'the last step was saved'}"
        return [*closed, *self._fail(reason, now=now, restartable=restartable)]

    # --- a lost node ------------------------------------------------------------------------------------------

    def _face_loss(
        self, node: str, symptom: str, *, now: float, leaving: bool = False, waited_s: float = 0.0
    ) -> list[Action]:
        """Another node takes the ranks of a lost one, or the others go on without it; else all start again."""
        assert self.world is not None, "a running job has a world"
        if self._after_dump is not None:
            return self._end_dump(f"the last step was not saved: {symptom}", now=now)
        self._settle_until = None
        self._vacant.add(node)
        left = [p.node for p in self.world.placements if p.node not in self._vacant]
        statuses = [self.members[name].status for name in left if name in self.members]
        enough = len(left) >= self.rules.min_nodes and not self._spares()
        situation = Situation(
            num_lost=sum(p.num_workers for p in self.world.placements if p.node in self._vacant),
            num_alive=sum(1 for status in statuses for pid in status.pids if pid),
            all_attached=len(statuses) == len(left) and all(status.attached for status in statuses),
            repeated=False,
            repairs_left=self._repairs.used(now=now) < self._repairs.limit and self._in_a_row < MAX_IN_A_ROW,
            nodes_lost=len(self._vacant),
            enough_nodes=len(left) if enough else 0,
            waited_s=waited_s,
        )
        plan = ladder.choose(situation, allowed=self.rules.strategies)
        if plan.strategy is Strategy.EXIT:
            self._vacant, self._vacant_until = set(), None
            return self._resize(symptom, now=now) if leaving else self._fail(symptom, now=now)
        if plan.strategy is Strategy.DUMP:
            self._vacant, self._vacant_until = set(), None
            return self._dump(symptom, plan, left, now=now)
        opened = self._open_incident(symptom, plan, now=now)
        if plan.strategy is Strategy.ELASTIC_TRAINING:
            self._vacant, self._vacant_until = set(), None
            return [*opened, *self._publish_repair(self._places(left))]
        self._vacant_until = now + self.rules.join_timeout_s
        return opened

    def _places(self, nodes: list[str]) -> tuple[Placement, ...]:
        """Ranks for these nodes, in this order."""
        return place([self._candidate(self.members[node]) for node in nodes])

    def _fill(self, *, now: float) -> list[Action]:
        """Give the ranks of lost nodes to nodes that are ready, all at once."""
        assert self.world is not None, "a running job has a world"
        if any(name in self._vacant and _is_leaving(member) for name, member in self.members.items()):
            # Nobody gets its ranks before its workers are gone.
            return []
        spares = self._spares()
        placements: list[Placement] = []
        for placement in self.world.placements:
            taker: str | None = placement.node
            if placement.node in self._vacant:
                fit = [name for name in spares if self.members[name].registered.num_workers == placement.num_workers]
                taker = placement.node if placement.node in fit else next(iter(fit), None)
            if taker is None:
                return self._give_up_waiting(now=now)
            spares = [name for name in spares if name != taker]
            registered = self.members[taker].registered
            placements.append(replace(placement, node=taker, host=registered.host, machine=registered.machine))
        self._vacant, self._vacant_until = set(), None
        return self._publish_repair(tuple(placements))

    def _give_up_waiting(self, *, now: float) -> list[Action]:
        if self._vacant_until is None or now < self._vacant_until:
            return []
        nodes, waited_s = sorted(self._vacant), self.rules.join_timeout_s
        symptom = f"no node took the place of {', '.join(nodes)} within {waited_s:g} s"
        return self._face_loss(nodes[0], symptom, now=now, waited_s=waited_s) + self._advance(now=now)

    def _store_of(self, first: Address) -> Address:
        """Where the workers of a world meet, if the first of its nodes would have them at `first`."""
        return Address(*self.rules.store) if self.rules.store is not None else first

    def _spares(self) -> list[str]:
        """Nodes that are ready and have no place in the world; prepared ones first, then the longest ready."""
        spare = [member for member in self._members(is_server=False) if not self._is_current(member)]
        ready = [(not self._is_prepared(m), m.ready_at, m.registered.node) for m in spare if m.ready_at is not None]
        return [name for *_, name in sorted(ready)]

    def _close_incident(self, verdict: str, *, now: float, timings_ms: dict[str, float] | None = None) -> list[Action]:
        incident, self._incident = self._incident, None
        if incident is None:
            return []
        total_ms = 0.0 if self._failed_at is None else (now - self._failed_at) * 1000
        return [Tale(IncidentClosed(incident.number, verdict, total_ms, timings_ms or {}))]

    def _symptom(self, member: Member) -> str:
        status = member.status
        if status.failures:
            failure = status.failures[0]
            return f"rank {failure.rank} {classify(failure).evidence}"
        return f"node {member.registered.node} stopped its workers: {status.reason or 'no reason given'}"

    def _resume(self, *, now: float) -> list[Action]:
        """Nobody could be heard while the master was away, so nobody has missed a deadline."""
        self._leases.renew_all(now=now)
        if self._stop_until is not None:
            self._stop_until = now + self.rules.stop_timeout_s
        if self._vacant_until is not None:
            self._vacant_until = now + self.rules.join_timeout_s
        if self._gather_until is not None:
            self._gather_until = now + self.rules.join_timeout_s
        return [Tale(MasterRestored(self.generation)), *self._remind_all()]

    def _expire(self, silent: tuple[str, ...], *, now: float) -> list[Action]:
        actions: list[Action] = []
        for node in silent:
            actions += self._lose(node, f"silent for {self.rules.lease_s:g} s", now=now)
        if self.phase is Phase.RUNNING and self._settle_until is not None and now >= self._settle_until:
            actions += self._repair(now=now)
        if self.phase is Phase.RUNNING and self._dump_until is not None and now >= self._dump_until:
            actions += self._end_dump(f"the last step was not saved within {DUMP_S:g} s", now=now)
        if self.phase is Phase.STOPPING and self._stop_until is not None and now >= self._stop_until:
            for node in self._not_stopped():
                actions += self._lose(node, f"did not stop within {self.rules.stop_timeout_s:g} s", now=now)
        return actions

    # --- decisions --------------------------------------------------------------------------------------------

    def _lose(self, node: str, reason: str, *, now: float) -> list[Action]:
        """A node is gone for good."""
        member = self.members.pop(node)
        self._leases.drop(node)
        actions: list[Action] = [Tale(NodeLost(node, reason))]
        if self.phase is Phase.RUNNING and self._is_current(member) and node not in self._succeeded:
            actions += self._face_loss(node, f"node {node} is lost: {reason}", now=now)
            self._blame_worker = False
        elif self.phase is Phase.RUNNING and member.registered.is_server and not self.rules.replaces:
            actions += self._fail(f"node {node} is lost: {reason}", now=now)
            self._blame_worker = False
        return actions

    def _end(self, exit_code: int, reason: str, *, now: float) -> list[Action]:
        """Somebody wants the job to end: no worker is to blame."""
        if self.phase is Phase.FINISHED:
            return []
        self._ending = True
        self._blame_worker = False
        return self._stop(reason, then=Outcome(exit_code, reason), now=now)

    def _let_go(self, member: Member, *, now: float) -> list[Action]:
        """A node is on its way out."""
        node, reason = member.registered.node, member.status.reason
        held = self.phase is Phase.RUNNING and self._is_current(member) and node not in self._succeeded
        actions: list[Action] = []
        if member.status.phase is NodePhase.LEFT:
            del self.members[node]
            self._leases.drop(node)
            actions.append(Tale(NodeLost(node, reason)))
        if not held or node in self._vacant:
            return actions
        return actions + self._face_loss(node, f"node {node} left: {reason}", now=now, leaving=True)

    def _fail(self, symptom: str, *, now: float, restartable: bool = True) -> list[Action]:
        """The current generation cannot go on; another one follows if the budget allows it."""
        self._settle_until = self._dump_until = self._after_dump = None
        self._failed_at = now
        self._blame_worker = True
        if not restartable:
            return self._stop(symptom, then=Outcome(1, symptom), now=now)
        if self._budget.spend(now=now):
            return self._stop(symptom, then=None, now=now)
        limit = self.rules.max_restarts
        spent = "restarts are off (--max-restarts 0)" if limit == 0 else f"{limit} of {limit} restarts are used"
        reason = f"{symptom}; {spent}"
        return self._stop(reason, then=Outcome(1, reason), now=now)

    def _stop(self, reason: str, *, then: Outcome | None, now: float) -> list[Action]:
        """Stop the current generation, then restart or finish."""
        self.phase = Phase.STOPPING
        self._vacant, self._vacant_until = set(), None
        self._outcome_after_stop = then
        self._stop_until = now + self.rules.stop_timeout_s
        self._gather_until = self._decide_at = self._grow_at = None
        used, limit = self._budget.used(now=now), self.rules.max_restarts
        decision = "restart" if then is None else "finish"
        tale = Tale(Stopping(self.generation, decision, reason, used, limit))
        return [*self._close_incident("failed", now=now), tale, *self._remind_all()]

    def _resize(self, reason: str, *, now: float) -> list[Action]:
        self.phase = Phase.STOPPING
        self._vacant, self._vacant_until = set(), None
        self._outcome_after_stop = None
        self._stop_until = now + self.rules.stop_timeout_s
        self._grow_at = self._failed_at = None
        return [*self._close_incident("failed", now=now), Tale(Resizing(self.generation, reason)), *self._remind_all()]

    def _advance(self, *, now: float) -> list[Action]:
        """Take every step that is due and needs no further event."""
        actions: list[Action] = []
        if self.phase is Phase.STOPPING and not self._not_stopped():
            self._stop_until = None
            if self._outcome_after_stop is not None:
                return self._finish(self._with_root_cause(self._outcome_after_stop), now=now)
            self.phase = Phase.GATHERING
            self._gather_until = now + self.rules.join_timeout_s
        if self.phase is Phase.GATHERING:
            actions += self._gather(now=now)
        elif self.phase is Phase.RUNNING:
            actions += self._settle(now=now)
        return actions

    def _gather(self, *, now: float) -> list[Action]:
        candidates = [self._candidate(member) for member in self._members(is_server=False)]
        decision = self._await_servers(decide_world(candidates, first=self.generation == 0, now=now, rules=self.rules))
        self._decide_at = decision.wake_at
        if decision.members is not None:
            return self._publish(decision.members, decision.reason, now=now)
        if self._gather_until is not None and now >= self._gather_until:
            waited = f"{self.rules.join_timeout_s:g} s"
            reason = f"no world within {waited}: {decision.reason}{self._absence(candidates)}"
            return self._finish(self._with_root_cause(Outcome(1, reason)), now=now)
        if decision.reason == self.waiting_reason:
            return []
        self.waiting_reason = decision.reason
        return [Tale(Waiting(decision.reason))]

    def _seat_servers(self) -> tuple[str, ...]:
        servers = [self._candidate(member) for member in self._members(is_server=True)]
        return tuple(server.node for server in choose(servers, self.rules.num_servers, rules=self.rules))

    def _await_servers(self, decision: Decision) -> Decision:
        here, expected = len(self._members(is_server=True)), self.rules.num_servers
        if here >= expected:
            return decision
        return replace(decision, members=None, reason=f"{decision.reason}, {here} of {expected} servers")

    def _absence(self, candidates: list[Candidate]) -> str:
        parts = []
        if len(candidates) < self.rules.min_nodes:
            parts.append(describe_absence(candidates, expected=self.rules.min_nodes))
        servers = [self._candidate(member) for member in self._members(is_server=True)]
        if len(servers) < self.rules.num_servers:
            parts.append(f"servers {describe_absence(servers, expected=self.rules.num_servers)}")
        return f" ({'; '.join(parts)})" if parts else ""

    def _publish(self, members: tuple[Candidate, ...], reason: str, *, now: float) -> list[Action]:
        if self.generation > 0:
            self.restart_count += 1
        self.generation += 1
        self.phase = Phase.RUNNING
        self.waiting_reason = ""
        self._gather_until = self._decide_at = None
        self._failures, self._succeeded, self._started, self._pids = [], set(), set(), {}
        self._blame_worker = False
        ignored = ""
        if self.rules.rank_table:
            members, ignored = seat_by_table(members, self.rules.rank_table)
        servers = self._seat_servers() if self.world is None else self.world.servers
        store = self._store_of(members[0].store)
        self.world = World(self.generation, self.restart_count, place(members), store, servers=servers)
        for placement in self.world.placements:
            member = self.members[placement.node]
            member.previous_rank, member.placed_in = placement.group_rank, self.generation
        formed = WorldFormed(self.generation, self.restart_count, self.world.size, self.world.placements, reason)
        warnings: list[Action] = [Tale(RankTableIgnored(ignored))] if ignored else []
        return [*warnings, Tale(formed), *self._remind_all()]

    def _settle(self, *, now: float) -> list[Action]:
        """A running job: is it repaired, is it done, and could it grow?"""
        assert self.world is not None, "a running job has a world"
        if self._vacant:
            return self._fill(now=now)
        nodes = [placement.node for placement in self.world.placements]
        if self._after_dump is not None and all(node in self._committed for node in nodes):
            return self._end_dump("", now=now) + self._advance(now=now)
        if self._incident is not None and all(node in self._committed for node in nodes):
            timings = max((self.members[n].status.timings_ms for n in nodes), key=lambda t: sum(t.values()))
            closed = self._close_incident("repaired", now=now, timings_ms=timings)
            self._failed_at, self._in_a_row = None, 0
            return [*closed, *self._settle(now=now)]
        if all(node in self._succeeded for node in nodes):
            return self._finish(Outcome(0, "every worker ended with 0"), now=now)
        ready = self._spares()
        if not ready or len(nodes) >= self.rules.max_nodes or self._succeeded or self._incident is not None:
            self._grow_at = None
            return []
        if Strategy.ELASTIC_TRAINING in self.rules.strategies and self._can_take_in():
            return self._take_in(nodes, [name for name in ready if self._is_prepared(self.members[name])], now=now)
        if self._grow_at is None:
            self._grow_at = now + self.rules.last_call_s
        if now < self._grow_at:
            return []
        return self._resize(f"{', '.join(sorted(ready))} joined", now=now) + self._advance(now=now)

    def _take_in(self, nodes: list[str], prepared: list[str], *, now: float) -> list[Action]:
        """The world with more nodes; nobody is stopped for it, and nobody waits for processes to start."""
        newcomers = prepared[: self.rules.max_nodes - len(nodes)]
        if not newcomers:
            return []
        plan = Plan(Strategy.ELASTIC_TRAINING, f"{len(nodes)} of {self.rules.max_nodes} nodes were training")
        opened = self._open_incident(f"{', '.join(sorted(newcomers))} joined", plan, now=now)
        return [*opened, *self._publish_repair(self._places([*nodes, *newcomers]))]

    def _finish(self, outcome: Outcome, *, now: float) -> list[Action]:
        self.phase = Phase.FINISHED
        self.outcome = outcome
        return [Tale(JobFinished(outcome, self.restart_count)), *self._remind_all()]

    def _with_root_cause(self, outcome: Outcome) -> Outcome:
        """Name the worker to blame, if a worker is, and take its exit code."""
        root, consequences = find_root_cause(self._failures)
        if root is None or not self._blame_worker:
            return outcome
        reason = outcome.reason
        return Outcome(exit_code_of(root), reason, root, consequences)

    # --- wishes -----------------------------------------------------------------------------------------------

    def _wish(self, member: Member) -> Order | None:
        """What this node should do now, if its status does not show it doing so already."""
        status = member.status
        busy = status.phase in (NodePhase.RUNNING, NodePhase.BROKEN, NodePhase.SUCCEEDED)
        if self.phase is Phase.FINISHED and self.outcome is not None:
            return Finish(self.outcome)
        if member.registered.is_server:
            # It only has to learn its rank, once; how the world is repaired is none of its business.
            unaware = status.phase is NodePhase.READY and self.phase is Phase.RUNNING
            return Run(self.world) if unaware and self.world is not None else None
        if self.phase is Phase.STOPPING:
            on_its_way = status.phase in (NodePhase.DRAINING, NodePhase.LEAVING, NodePhase.LEFT)
            done = on_its_way or _is_idle(member, self.generation)
            return None if done else Stop(self.generation, "the group is being stopped")
        if self.phase is Phase.GATHERING or self.world is None:
            return Stop(self.generation, "no world exists") if busy else None
        if not self._is_current(member):
            return Stop(self.generation, "this node has no place in the world") if busy else self._preparation(member)
        if status.generation >= self.generation:
            return None
        if self.world.repairs and status.phase in (NodePhase.RUNNING, NodePhase.BROKEN, NodePhase.READY):
            return Run(self.world)
        if busy:
            return Stop(self.generation - 1, "a newer generation exists")
        return Run(self.world) if status.phase is NodePhase.READY else None

    def _preparation(self, member: Member) -> Order | None:
        """A spare's processes wait at their loop, so that nobody waits for them when they are needed."""
        if self.phase is not Phase.RUNNING or member.ready_at is None or self._is_prepared(member):
            return None
        assert self.world is not None, "a running job has a world"
        return Prepare(self.world) if self.rules.max_spares and self._can_take_in() else None

    def _remind(self, member: Member) -> list[Action]:
        order = self._wish(member)
        return [] if order is None else [Tell(member.registered.node, member.nonce, order)]

    def _remind_all(self) -> list[Action]:
        return [action for member in self.members.values() for action in self._remind(member)]

    # --- questions --------------------------------------------------------------------------------------------

    def _is_current(self, member: Member) -> bool:
        """Whether this incarnation of the node has a place in the current world."""
        return member.placed_in == self.generation

    def _is_prepared(self, member: Member) -> bool:
        return member.status.parked >= member.registered.num_workers

    def _can_take_in(self) -> bool:
        """Whether the workers of this world can be told to join another one with nodes that are new to it."""
        taking_in = {Strategy.RECOVER, Strategy.ELASTIC_TRAINING} & set(self.rules.strategies)
        placed = [self.members[p.node] for p in self.world.placements if p.node in self.members] if self.world else []
        return bool(taking_in and placed) and all(member.status.attached for member in placed)

    def _not_stopped(self) -> list[str]:
        """Nodes that may still have live workers."""
        workers = self._members(is_server=False)
        return [member.registered.node for member in workers if not _is_idle(member, self.generation)]

    def _members(self, *, is_server: bool) -> list[Member]:
        return [member for member in self.members.values() if member.registered.is_server is is_server]

    def _is_watching(self) -> bool:
        """Whether silence and death mean anything: before there is a world, always."""
        return self.rules.heartbeat or self.world is None

    def _candidate(self, member: Member) -> Candidate:
        registered = member.registered
        return Candidate(
            registered.node,
            registered.host,
            registered.num_workers,
            registered.store,
            member.ready_at,
            registered.wanted_rank,
            member.previous_rank,
            registered.machine,
        )


def _is_leaving(member: Member) -> bool:
    return member.status.phase in (NodePhase.LEAVING, NodePhase.LEFT)


def _is_idle(member: Member, generation: int) -> bool:
    # A node that has not answered for this generation may yet receive an older order to run it.
    return member.status.phase is NodePhase.READY and member.status.generation >= generation


def _describe(fault: StepFault | None) -> str:
    assert fault is not None, "a broken node names a loss or a fault"
    headline = fault.error.strip().splitlines()[-1][:160] if fault.error.strip() else fault.kind
    return f"rank {fault.rank} failed step {fault.step} ({fault.kind}): {headline}"


def _signature(root: WorkerFailure | None, fault: StepFault | None) -> tuple[int, str] | None:
    """What would make a second fault the same as the first: the step, and the exception's own words.

    A bug raises on whichever rank comes to it first; a crash or a hang is the same only on the same rank. A newcomer
    shows step 0 until it comes to a step, so a crash there is not known to be at a step at all.
    """
    if root is not None and root.error:
        step = -1 if root.step is None else root.step
        if classify(root).kind is FaultKind.EXCEPTION:
            return step, root.error.strip().splitlines()[-1]
        return (step, f"rank {root.rank} {classify(root).evidence}") if step > 0 else None
    if root is None and fault is not None and fault.kind != "communication":
        return fault.step, fault.error.strip().splitlines()[-1] if fault.error.strip() else fault.kind
    return None
