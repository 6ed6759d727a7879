"""The nodes of one role, desired and observed: what to create and what to delete, and why.

A *place* is a rank that a node is wanted for. The node in it may be gone; the place stays, and with it the rank and
the memory that its next node gets. Ids of nodes never repeat, nor does another role use them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.core.backoff import Backoff
from holdfast.core.budget import Budget
from holdfast.core.fleet.actions import Action, Create, Delete, GiveUp, NodeOrder, Quarantine, Tell
from holdfast.core.fleet.causes import Cause, Ending, tell_cause
from holdfast.core.fleet.events import (
    FleetEvent,
    MemoryExhausted,
    NodeEnded,
    NodeGivenUp,
    NodeStarted,
    NodeUnfit,
    RoleEnded,
    ScaleAsked,
)
from holdfast.core.fleet.hosts import Hosts
from holdfast.core.fleet.story import (
    FleetScaled,
    HostQuarantined,
    NodeCreated,
    NodeGone,
    NodeRuns,
    PlaceGivenUp,
    Record,
)
from holdfast.spec.relaunch import RelaunchRules


class NodeState(StrEnum):
    PENDING = "pending"
    """It was asked for, and there is no room for it yet."""
    RUNNING = "running"
    LEAVING = "leaving"
    """It was asked to leave, or is being killed."""
    GONE = "gone"


@dataclass(slots=True)
class Node:
    order: NodeOrder
    state: NodeState = NodeState.PENDING
    host: str = ""
    why_gone: str = ""
    unwanted: bool = False
    """Its end was asked for, and nobody takes its place."""
    silent: str = ""
    """Why the master has given it up."""
    kill_at: float | None = None
    """When it is killed, if it is still there: it was given up, or its role has ended."""
    out_of_memory: bool = False
    unfit: str = ""
    """Why the master has refused it."""


@dataclass(slots=True)
class Place:
    rank: int
    memory_bytes: int | None
    node: str | None = None
    last: str | None = None
    """The node that was here before."""
    due_at: float | None = None
    """When the next node is created; None while there is one, or if there will be none."""
    reason: str = ""
    relaunched_at: deque[float] = field(default_factory=deque)


LEAVE_S = 1.0
"""For a node that the master has given up to end by itself, as one that has left does; then it is killed."""
MOST_GONE = 1000
"""Nodes that are gone and still remembered, for those who ask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleSize:
    """How many nodes a role has, and how large they are at first."""

    role: str
    least: int
    most: int
    memory_bytes: int | None


class Fleet:
    """The nodes of one role; ids and hosts are those of the whole job."""

    def __init__(
        self, rules: RelaunchRules, size: RoleSize, *, ids: Iterator[int], hosts: Hosts, shutdown_s: float
    ) -> None:
        self.size = size
        self._rules = rules
        self._ids = ids
        self._hosts = hosts
        self._shutdown_s = shutdown_s
        self._budgets = {cause: Budget(rules.limits[cause], window_s=rules.window_s) for cause in Cause}
        self._backoff = Backoff(*rules.backoff_s)
        self.nodes: dict[str, Node] = {}
        self.places: dict[int, Place] = {}
        self.has_ended = False
        self._why_ended = ""
        self._open_places(size.most, now=0.0, reason="the job has begun")

    @property
    def num_wanted(self) -> int:
        return len(self.places)

    def living(self, *states: NodeState) -> list[Node]:
        """The nodes in one of these states; in none, those that are not gone."""
        wanted = states or (NodeState.PENDING, NodeState.RUNNING, NodeState.LEAVING)
        return [node for node in self.nodes.values() if node.state in wanted]

    def handle(self, event: FleetEvent, *, now: float) -> list[Action]:
        actions: list[Action] = []
        match event:
            case NodeStarted():
                actions = self._note_start(event)
            case NodeEnded():
                actions = self._note_end(event, now=now)
            case MemoryExhausted():
                actions = self._note_memory(event)
            case NodeGivenUp():
                self._note_silence(event, now=now)
            case NodeUnfit():
                self._note_unfitness(event)
            case ScaleAsked() if event.role == self.size.role:
                actions = self._scale(event.num_nodes, now=now)
            case RoleEnded():
                actions = self._end(event, now=now)
            case _:
                # Time has passed, or it is another role's.
                pass
        return actions + self._kill_late(now=now) + self._fill(now=now)

    def next_deadline(self) -> float | None:
        due = [node.kill_at for node in self.nodes.values()]
        if not self.has_ended:
            due += [place.due_at for place in self.places.values()]
        return min((at for at in due if at is not None), default=None)

    # --- creating ---------------------------------------------------------------------------------------------

    def _open_places(self, most: int, *, now: float, reason: str) -> None:
        for rank in range(len(self.places), most):
            self.places[rank] = Place(rank, self.size.memory_bytes, due_at=now, reason=reason)

    def _fill(self, *, now: float) -> list[Action]:
        if self.has_ended:
            return []
        actions: list[Action] = []
        for place in self.places.values():
            if place.due_at is not None and now >= place.due_at:
                actions += self._create(place)
        return actions

    def _create(self, place: Place) -> list[Action]:
        number = next(self._ids)
        order = NodeOrder(f"node-{number}", number, place.rank, place.memory_bytes, self.size.role)
        self.nodes[order.name] = Node(order)
        place.node, place.due_at = order.name, None
        record = NodeCreated(order.name, order.rank, order.memory_bytes, place.last, place.reason)
        return [self._tell(record), Create(order)]

    def _tell(self, record: Record) -> Tell:
        return Tell(record, self.size.role)

    # --- what the platform and the master say -----------------------------------------------------------------

    def _note_start(self, event: NodeStarted) -> list[Action]:
        node = self.nodes.get(event.node)
        if node is None or node.state is NodeState.GONE:
            return []
        if node.state is NodeState.LEAVING:
            # It was about to start when it was told to leave, and may not have heard it.
            return self._delete(node, grace_s=0.0)
        node.state, node.host = NodeState.RUNNING, event.host
        return [self._tell(NodeRuns(event.node, event.host))]

    def _note_memory(self, event: MemoryExhausted) -> list[Action]:
        """A node that has too little memory now will have too little after a restart of its workers."""
        node = self.nodes.get(event.node)
        if node is None or node.state is not NodeState.RUNNING:
            return []
        node.out_of_memory = True
        return self._delete(node, grace_s=0.0)

    def _note_silence(self, event: NodeGivenUp, *, now: float) -> None:
        """One that has left by itself, or is dead, ends soon; one that is cut off never does."""
        node = self.nodes.get(event.node)
        if node is not None and node.state is NodeState.RUNNING:
            node.silent, node.kill_at = event.reason, now + LEAVE_S

    def _note_unfitness(self, event: NodeUnfit) -> None:
        node = self.nodes.get(event.node)
        if node is not None:
            node.unfit = event.reason

    def _kill_late(self, *, now: float) -> list[Action]:
        actions: list[Action] = []
        for node in self.nodes.values():
            if node.kill_at is not None and now >= node.kill_at:
                node.kill_at = None
                actions += self._delete(node, grace_s=0.0) if node.state is NodeState.RUNNING else []
        return actions

    def _delete(self, node: Node, *, grace_s: float) -> list[Action]:
        node.state = NodeState.LEAVING
        return [Delete(node.order.name, grace_s)]

    # --- ends -------------------------------------------------------------------------------------------------

    def _note_end(self, event: NodeEnded, *, now: float) -> list[Action]:
        node = self.nodes.get(event.node)
        if node is None or node.state is NodeState.GONE:
            return []
        killed_by_us = node.state is NodeState.LEAVING
        node.state, node.kill_at = NodeState.GONE, None
        place = self.places.get(node.order.rank)
        if place is not None and place.node != event.node:
            place = None
        if place is not None:
            place.node, place.last = None, event.node
        self._forget_gone()
        if node.unwanted or self.has_ended or place is None:
            node.why_gone = "it was not wanted any more" if node.unwanted else self._why_ended
            return [self._tell_gone(node, event, cause="", evidence=node.why_gone)]
        silent = node.silent if killed_by_us else ""
        lacks_memory = event.out_of_memory or node.out_of_memory
        ending = Ending(event.exit_code, event.signal, lacks_memory, silent, node.unfit)
        cause, evidence = tell_cause(ending)
        node.why_gone = cause
        told = self._tell_gone(node, event, cause=cause, evidence=evidence)
        avoided: list[Action] = []
        if self._hosts.suspect(node.host, cause, now=now):
            avoided = [self._tell(HostQuarantined(node.host, self._rules.quarantine)), Quarantine(node.host)]
        return [told, *avoided, *self._relaunch(place, cause, now=now)]

    def _end(self, event: RoleEnded, *, now: float) -> list[Action]:
        self.has_ended, self._why_ended = True, self._why_ended or event.why
        for node in self.living(NodeState.RUNNING):
            latest = now + event.within_s
            node.kill_at = latest if node.kill_at is None else min(latest, node.kill_at)
        waiting = self.living(NodeState.PENDING)
        return [action for node in waiting for action in self._delete(node, grace_s=0.0)]

    def _tell_gone(self, node: Node, event: NodeEnded, *, cause: str, evidence: str) -> Tell:
        order = node.order
        return self._tell(NodeGone(order.name, order.rank, node.host, cause, evidence, event.exit_code, event.signal))

    def _relaunch(self, place: Place, cause: Cause, *, now: float) -> list[Action]:
        memory_bytes = self._next_memory(place.memory_bytes) if cause is Cause.OUT_OF_MEMORY else place.memory_bytes
        if cause is Cause.OUT_OF_MEMORY and memory_bytes == place.memory_bytes:
            return self._vacate(place, f"it had {memory_bytes} bytes of memory already, the most there is for a node")
        budget = self._budgets[cause]
        if not budget.spend(now=now):
            words = cause.replace("_", " ")
            limit = f"{budget.limit} nodes were replaced within {budget.window_s:g} s" if budget.limit else "never"
            return self._vacate(place, f"the budget for this cause ({words}) is spent: {limit}")
        while place.relaunched_at and place.relaunched_at[0] <= now - self._rules.window_s:
            place.relaunched_at.popleft()
        attempt = len(place.relaunched_at)
        place.relaunched_at.append(now)
        at_once = attempt == 0 and cause in (Cause.KILLED, Cause.OUT_OF_MEMORY, Cause.HARDWARE)
        place.due_at = now + (0.0 if at_once else self._backoff.delay_s(attempt, draw=1.0))
        more = (
            "" if memory_bytes == place.memory_bytes else f", with {memory_bytes} bytes instead of {place.memory_bytes}"
        )
        place.reason, place.memory_bytes = cause.replace("_", " ") + more, memory_bytes
        return []

    def _next_memory(self, before: int | None) -> int | None:
        if before is None:
            return None
        rules = self._rules
        grown = min(int(before * rules.memory_factor), before + rules.memory_step_bytes, rules.memory_cap_bytes)
        return max(before, grown)

    def _vacate(self, place: Place, reason: str) -> list[Action]:
        place.due_at = None
        actions: list[Action] = [self._tell(PlaceGivenUp(place.rank, place.last or "", reason))]
        able = [each for each in self.places.values() if each.node is not None or each.due_at is not None]
        if len(able) < self.size.least:
            actions.append(GiveUp(f"{len(able)} nodes are left of at least {self.size.least}, and {reason}"))
        return actions

    def _forget_gone(self) -> None:
        gone = [name for name, node in self.nodes.items() if node.state is NodeState.GONE]
        for name in gone[: max(0, len(gone) - MOST_GONE)]:
            del self.nodes[name]

    # --- scaling ----------------------------------------------------------------------------------------------

    def _scale(self, num_nodes: int, *, now: float) -> list[Action]:
        before = self.num_wanted
        actions: list[Action] = [self._tell(FleetScaled(num_nodes, before))]
        for rank in range(num_nodes, before):
            place = self.places.pop(rank)
            node = self.nodes.get(place.node or "")
            if node is not None:
                node.unwanted = True
                actions += self._delete(node, grace_s=self._shutdown_s)
        for place in self.places.values():
            if place.node is None and place.due_at is None:
                place.due_at, place.reason = now, "somebody asked for it"
        self._open_places(num_nodes, now=now, reason="somebody asked for it")
        return actions
