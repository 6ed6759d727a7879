"""The roles of a job: a fleet for each, with one count of ids and on the same hosts; and how the job ends.

Every role ends by itself. The job has ended when all have; when one ends badly, the others are asked to end too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from holdfast.core.fleet.actions import Action, GiveUp, Interrupt, Reserve
from holdfast.core.fleet.events import JobEvent, RoleEnded, RoleFinished, StopAsked, TimePassed
from holdfast.core.fleet.hosts import Hosts
from holdfast.core.fleet.machine import Fleet, NodeState, RoleSize
from holdfast.spec.relaunch import RelaunchRules

STRAGGLE_S = 15.0
"""For nodes to end once their role has; then they are killed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job ends, where not every role has ended well."""

    exit_code: int
    reason: str = ""
    """In words; empty if a role has failed, whose outcome says more."""
    role: str = ""
    """The role that has failed; empty if somebody asked for the end, or the nodes do not suffice."""


class Fleets:
    def __init__(self, rules: RelaunchRules, sizes: Sequence[RoleSize], *, shutdown_s: float) -> None:
        ids, hosts = count(), Hosts(rules)
        self.fleets = {size.role: Fleet(rules, size, ids=ids, hosts=hosts, shutdown_s=shutdown_s) for size in sizes}
        self.verdict: Verdict | None = None
        self._shutdown_s = shutdown_s
        self._is_hurried = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for; whoever is alive then is killed."""
        ends = self.verdict is not None or all(fleet.has_ended for fleet in self.fleets.values())
        return self._is_hurried or (ends and not any(fleet.living() for fleet in self.fleets.values()))

    def begin(self, *, now: float) -> list[Action]:
        """What comes before all events."""
        kept: list[Action] = [Reserve(role, fleet.size.least) for role, fleet in self.fleets.items()]
        return kept + self.handle(TimePassed(), now=now)

    def handle(self, event: JobEvent, *, now: float) -> list[Action]:
        match event:
            case RoleFinished():
                return self._note_finish(event, now=now)
            case StopAsked():
                return self._stop(event, now=now)
        actions: list[Action] = []
        for role, fleet in self.fleets.items():
            for action in fleet.handle(event, now=now):
                actions += self._give_up(role, action, now=now) if isinstance(action, GiveUp) else [action]
        return actions

    def next_deadline(self) -> float | None:
        due = [fleet.next_deadline() for fleet in self.fleets.values()]
        return min((at for at in due if at is not None), default=None)

    # --- ends -------------------------------------------------------------------------------------------------

    def _note_finish(self, event: RoleFinished, *, now: float) -> list[Action]:
        why = "the job has ended" if len(self.fleets) == 1 else "its role has ended"
        actions = self.fleets[event.role].handle(RoleEnded(STRAGGLE_S, why), now=now)
        actions.append(Reserve(event.role, 0))
        if event.exit_code and self.verdict is None:
            self.verdict = Verdict(event.exit_code, role=event.role)
            actions += self._end_others(now=now)
        return actions

    def _give_up(self, role: str, action: GiveUp, *, now: float) -> list[Action]:
        if self.verdict is not None:
            return []
        where = "" if len(self.fleets) == 1 else f"role {role}: "
        self.verdict = Verdict(1, f"the job is given up: {where}{action.reason}")
        return self._end_others(now=now)

    def _stop(self, event: StopAsked, *, now: float) -> list[Action]:
        if self.verdict is not None:
            self._is_hurried |= event.impatient
            return []
        self.verdict = Verdict(event.exit_code, event.reason)
        return self._end_others(now=now)

    def _end_others(self, *, now: float) -> list[Action]:
        """Have every role that has not ended do so, in order; whoever is late is killed."""
        actions: list[Action] = []
        for fleet in self.fleets.values():
            if not fleet.has_ended:
                actions += [Interrupt(node.order.name) for node in fleet.living(NodeState.RUNNING)]
                actions += fleet.handle(RoleEnded(self._shutdown_s + STRAGGLE_S, "the job has ended"), now=now)
        return actions
