"""What a master knows of its job: who is in it, what it is doing, and what it waits for. Nothing here decides."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.core.budget import Budget
from holdfast.core.health.check import NodeCheck
from holdfast.core.health.stragglers import Stragglers
from holdfast.core.ids import (
    Address,
    Deputy,
    Mastership,
    NodePhase,
    NodeStatus,
    Outcome,
    Placement,
    WorkerFailure,
    World,
)
from holdfast.core.job.events import NodeRegistered
from holdfast.core.leases import Leases
from holdfast.core.rendezvous import Candidate, place
from holdfast.core.story import IncidentOpened
from holdfast.spec.job import JobRules
from holdfast.spec.strategy import Strategy

FIRST = Mastership(0, "")

MAX_IN_A_ROW = 20
"""Repairs without a single committed step between them: what comes next would not hold either."""

REPAIRS_WINDOW_S = 3600.0

REFUSALS_TOLD, REFUSALS_WINDOW_S = 100, 3600.0
"""So many refusals are told of in so long. All are answered, but a node that asks for ever must not fill the story."""


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

    @property
    def is_leaving(self) -> bool:
        return self.status.phase in (NodePhase.LEAVING, NodePhase.LEFT)

    @property
    def is_prepared(self) -> bool:
        """Whether its processes wait at their loop."""
        return self.status.parked >= self.registered.num_workers

    def is_idle(self, generation: int) -> bool:
        """Whether no worker lives here, and none will be started for this generation or an older one."""
        # A node that has not answered for this generation may yet receive an older order to run it.
        return self.status.phase is NodePhase.READY and self.status.generation >= generation

    @property
    def candidate(self) -> Candidate:
        registered = self.registered
        return Candidate(
            registered.node,
            registered.host,
            registered.num_workers,
            registered.store,
            self.ready_at,
            registered.wanted_rank,
            self.previous_rank,
            registered.machine,
        )


@dataclass(slots=True)
class Health:
    """What is known of the nodes' fitness. Incarnations are named by their nonce: another one is another node."""

    num_checks: int = 0
    check: NodeCheck | None = None
    fit: set[str] = field(default_factory=set)
    """Who has passed a check."""
    unresolved: set[str] = field(default_factory=set)
    """Who has failed a check together with another one, of which nobody knows which it was."""
    excluded: dict[str, str] = field(default_factory=dict)
    """Who is not to be used any more, with the reason."""
    stragglers: Stragglers = field(default_factory=Stragglers)

    def forget(self, node: str, nonce: str) -> None:
        """An incarnation is gone."""
        if self.check is not None:
            self.check.lose(node)
        self.stragglers.lose(node)
        self.fit.discard(nonce)
        self.excluded.pop(nonce, None)
        self.unresolved.discard(nonce)


class State:
    """Changed by the functions of this package, in answer to events."""

    def __init__(
        self,
        rules: JobRules,
        *,
        now: float,
        sole_nonce: str | None = None,
        master: Mastership = FIRST,
        host: str = "",
    ) -> None:
        self.rules = rules
        self.master = master
        self.host = host
        """The node that hosts the master; empty if that is no node of the job."""
        self.phase = Phase.GATHERING
        self.generation = 0
        self.restart_count = 0
        self.world: World | None = None
        self.outcome: Outcome | None = None
        self.members: dict[str, Member] = {}
        self.waiting_reason = ""
        self.is_waiting_told = False
        self.counted_at = -math.inf
        """When it was last told how many nodes are here."""
        self.sole_nonce = sole_nonce
        self.leases = Leases(rules.lease_s)
        self.budget = Budget(rules.max_restarts, window_s=rules.restart_window_s)
        self.gather_until: float | None = now + rules.join_timeout_s
        self.decide_at: float | None = None
        self.stop_until: float | None = None
        self.grow_at: float | None = None
        self.outcome_after_stop: Outcome | None = None
        self.is_ending = False
        self.blame_worker = False
        self.failures: list[WorkerFailure] = []
        self.failed_at: float | None = None
        self.succeeded: set[str] = set()
        self.started: set[str] = set()
        self.committed: set[str] = set()
        self.pids: dict[str, tuple[int, ...]] = {}
        self.repairs = Budget(rules.max_repairs, window_s=REPAIRS_WINDOW_S)
        self.refusals = Budget(REFUSALS_TOLD, window_s=REFUSALS_WINDOW_S)
        self.settle_until: float | None = None
        self.last_signature: tuple[int, str] | None = None
        self.last_strategy: Strategy | None = None
        """What was done about the fault with that signature."""
        self.incident: IncidentOpened | None = None
        self.vacant: set[str] = set()
        """Lost nodes of the current world whose ranks wait for another node."""
        self.vacant_until: float | None = None
        self.repair_until: float | None = None
        """When a repaired world has to have committed a step."""
        self.in_a_row = 0
        self.after_dump: tuple[str, bool] | None = None
        """While the last step is being saved: why all are stopped then, and whether they may be started again."""
        self.dump_until: float | None = None
        self.replaced: set[str] = set()
        """Nonces of incarnations whose id another one has taken while they may have lived."""
        self.num_incidents = 0
        self.is_inheriting = False
        self.awaited: set[str] = set()
        """Nodes of an inherited world that have yet to say how they are."""
        self.absent: dict[str, str] = {}
        """Nodes of an inherited world that are gone, and why."""
        self.gap = 0
        """Generations to leave out before the next one."""
        self.electorate: tuple[str, ...] = ()
        """The nodes of the newest world that most of its nodes know of: they could elect another master."""
        self.established = 0
        """The generation of that world."""
        self.unheard: set[str] = set()
        """Those of them that were given up for their silence."""
        self.doubt_until = 0.0
        """Until then nobody is given up for silence: others may yet turn out to be silent too."""
        self.quorum: frozenset[str] = frozenset()
        """Nodes at least half of which have to be here before there is another world."""
        self.stops_at_once = False
        self.health = Health()

    def spares(self) -> list[str]:
        """Nodes that are ready and have no place in the world; prepared ones first, then the longest ready."""
        spare = [member for member in self.usable() if not self.is_current(member) and self.is_fit(member)]
        ready = [(not m.is_prepared, m.ready_at, m.registered.node) for m in spare if m.ready_at is not None]
        return [name for *_, name in sorted(ready)]

    def store_of(self, first: Address) -> Address:
        """Where the workers of a world meet, if the first of its nodes would have them at `first`."""
        return Address(*self.rules.store) if self.rules.store is not None else first

    def places(self, nodes: list[str]) -> tuple[Placement, ...]:
        """Ranks for these nodes, in this order."""
        return place([self.members[node].candidate for node in nodes])

    @property
    def next_generation(self) -> int:
        return self.generation + 1 + self.gap

    def advance_generation(self) -> None:
        self.generation = self.next_generation
        self.gap, self.quorum = 0, frozenset()

    def deputies(self) -> list[Deputy]:
        """Nodes of the world that would host the master, were its host lost: first one of each other machine."""
        placements = () if self.world is None else self.world.placements
        placed = [self.members[p.node].registered for p in placements if p.node in self.members]
        able = [(each, each.deputy) for each in placed if each.deputy is not None and each.node != self.host]
        host = self.members.get(self.host)
        num_seen = Counter() if host is None else Counter([host.registered.machine])
        turns: list[int] = []
        for each, _ in able:
            # Who does not say which machine it is on has one of its own.
            turns.append(num_seen[each.machine] if each.machine else 0)
            num_seen[each.machine] += 1
        ordered = sorted(zip(turns, able, strict=True), key=lambda entry: entry[0])
        return [Deputy(each.node, address) for _, (each, address) in ordered]

    @property
    def is_left_to_others(self) -> bool:
        """Whether the node that hosts the master has left, and there is a world without it whose nodes can go on."""
        if self.phase is not Phase.RUNNING or self.world is None or self.world.placement_of(self.host) is not None:
            return False
        return bool(self.host) and self.host not in self.members and bool(self.deputies())

    def is_current(self, member: Member) -> bool:
        """Whether this incarnation of the node has a place in the current world."""
        return member.placed_in == self.generation

    def is_called_off(self, member: Member) -> bool:
        """Whether the workers that this node had, or was to have, in the current world were stopped, and not by us."""
        # An order of another master may have named a generation that this one has not come to.
        return member.status.called_off and member.status.generation >= self.generation

    def can_take_in(self) -> bool:
        """Whether the workers of this world can be told to join another one with nodes that are new to it."""
        taking_in = {Strategy.RECOVER, Strategy.ELASTIC_TRAINING} & set(self.rules.strategies)
        placed = [self.members[p.node] for p in self.world.placements if p.node in self.members] if self.world else []
        return bool(taking_in and placed) and all(member.status.attached for member in placed)

    def can_move(self, status: NodeStatus) -> bool:
        """Whether a node of this world can be told to go on in another one."""
        # One that has no process yet starts its processes in whichever world is the newest: one that came to a repaired
        # world, and a process of a cluster, which is there all the same and may not have been told of the first one.
        joins_late = self.world is not None and (self.world.repairs or not self.rules.is_launched)
        has_to_start = joins_late and not any(status.pids)
        return status.attached or has_to_start

    def gone(self) -> list[str]:
        """Nodes of the world that are not there any more, as one that has succeeded and left; another incarnation of it
        has no place."""
        placements = () if self.world is None else self.world.placements
        here = {node for node, member in self.members.items() if self.is_current(member)}
        return [placement.node for placement in placements if placement.node not in here]

    def placed(self) -> list[NodeStatus]:
        """How the nodes of the world are that are here."""
        return (
            [self.members[p.node].status for p in self.world.placements if p.node in self.members] if self.world else []
        )

    def num_alive(self, statuses: list[NodeStatus]) -> int:
        return sum(1 for status in statuses for pid in status.pids if pid)

    def not_stopped(self) -> list[str]:
        """Nodes that may still have live workers."""
        workers = self.of_role(is_server=False)
        return [member.registered.node for member in workers if not member.is_idle(self.generation)]

    def of_role(self, *, is_server: bool) -> list[Member]:
        return [member for member in self.members.values() if member.registered.is_server is is_server]

    def usable(self) -> list[Member]:
        """Nodes that may be in a world."""
        return [member for member in self.of_role(is_server=False) if member.nonce not in self.health.excluded]

    def is_fit(self, member: Member) -> bool:
        """Whether a node has passed a check, where it has to; one that has a place was let in by whoever knew."""
        passed = member.nonce in self.health.fit or (self.phase is Phase.RUNNING and self.is_current(member))
        return not self.rules.network_check or passed

    def has_enough_nodes(self) -> bool:
        """Whether there could be another world with those who are here."""
        return len([member for member in self.usable() if not member.is_leaving]) >= self.rules.min_nodes

    def is_host(self, member: Member) -> bool:
        """Whether the master is on this node."""
        return member.registered.node == self.host

    def remove(self, member: Member) -> None:
        """A node is gone."""
        del self.members[member.registered.node]
        self.leases.drop(member.registered.node)
        self.health.forget(member.registered.node, member.nonce)

    def is_watching(self) -> bool:
        """Whether silence and death mean anything: before there is a world, always."""
        return self.rules.heartbeat or self.world is None

    def has_repairs_left(self, *, now: float) -> bool:
        return self.repairs.used(now=now) < self.repairs.limit and self.in_a_row < MAX_IN_A_ROW
