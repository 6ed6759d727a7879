"""The machine: one event in, actions out."""

from __future__ import annotations

import math

from holdfast.core.job.arrivals import register
from holdfast.core.job.checking import advance_check, check_newcomers
from holdfast.core.job.dumping import DUMP_S, end_dump
from holdfast.core.job.ending import end, finish, with_root_cause
from holdfast.core.job.events import (
    Action,
    AgentDied,
    EndRequested,
    Event,
    Inherited,
    MasterStarted,
    NodeRegistered,
    StatusReported,
    Tale,
    TimePassed,
)
from holdfast.core.job.gathering import gather
from holdfast.core.job.losses import lose, lose_all
from holdfast.core.job.pacing import reconsider
from holdfast.core.job.repair import give_up_repair, repair
from holdfast.core.job.reports import hear, take_status
from holdfast.core.job.running import settle
from holdfast.core.job.state import Phase, State
from holdfast.core.job.succession import conclude, establish, inherit, is_in_doubt, isolate
from holdfast.core.job.wishes import remind_all
from holdfast.core.story import MasterRestored


class Job(State):
    """One job: who is in it, what it is doing, and what it does next."""

    def handle(self, event: Event, *, now: float) -> list[Action]:
        match event:
            case NodeRegistered():
                actions = register(self, event, now=now)
            case StatusReported():
                if self.is_old_news(event):
                    return hear(self, event, now=now)
                actions = take_status(self, event, now=now)
            case AgentDied():
                member = self.members.get(event.node)
                known = member is not None and member.nonce == event.nonce and self.phase is not Phase.FINISHED
                if member is not None and known and not self.is_watching():
                    member.is_dead, known = True, False
                actions = lose(self, event.node, event.evidence, now=now) if known else []
            case EndRequested():
                actions = end(self, event.exit_code, event.reason, now=now)
            case MasterStarted():
                actions = self._resume(now=now)
            case Inherited():
                actions = inherit(self, event, now=now)
            case TimePassed():
                actions = self._expire(event, now=now)
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
        ignored = self.phase is Phase.FINISHED or not self.is_watching()
        return () if ignored else tuple(self.leases.expired(now=now))

    def passing(self, *, now: float) -> TimePassed:
        """What is to be handled when the deadline has come."""
        silent = self.silent(now=now)
        return TimePassed(silent, tuple(self.leases.quiet(now=now)) if silent else ())

    def next_deadline(self) -> float | None:
        """When `TimePassed` is due; None when only an event can change anything."""
        if self.phase is Phase.FINISHED:
            return None
        lease_ends_at = self.leases.next_deadline() if self.is_watching() else None
        dates = (
            lease_ends_at if lease_ends_at is None else max(lease_ends_at, self.doubt_until),
            self.gather_until,
            self.decide_at,
            self.stop_until,
            self.grow_at,
            self.settle_until,
            self.vacant_until,
            self.repair_until,
            self.dump_until,
            None if self.health.check is None else self.health.check.until,
        )
        return min((date for date in dates if date is not None and date < math.inf), default=None)

    def _resume(self, *, now: float) -> list[Action]:
        """Nobody could be heard while the master was away, so nobody has missed a deadline."""
        self.leases.renew_all(now=now)
        if self.stop_until is not None:
            self.stop_until = now + self.rules.stop_timeout_s
        if self.vacant_until is not None:
            self.vacant_until = now + self.rules.join_timeout_s
        if self.gather_until is not None:
            self.gather_until = now + self.rules.join_timeout_s
        if self.repair_until is not None:
            self.repair_until = now + self.rules.repair_timeout_s
        if self.dump_until is not None:
            self.dump_until = now + DUMP_S
        if self.health.check is not None:
            self.health.check.resume(now=now)
        return [Tale(MasterRestored(self.generation)), *remind_all(self)]

    def _expire(self, event: TimePassed, *, now: float) -> list[Action]:
        silent = event.silent
        if is_in_doubt(self, event):
            silent, self.doubt_until = (), now + self.rules.lease_s / 10
        actions = isolate(self, silent, now=now)
        actions += lose_all(self, silent, f"silent for {self.rules.lease_s:g} s", now=now)
        if self.phase is Phase.RUNNING and self.settle_until is not None and now >= self.settle_until:
            actions += repair(self, now=now)
        if self.phase is Phase.RUNNING and self.repair_until is not None and now >= self.repair_until:
            actions += give_up_repair(self, now=now)
        if self.phase is Phase.RUNNING and self.dump_until is not None and now >= self.dump_until:
            actions += end_dump(self, f"the last step was not saved within {DUMP_S:g} s", now=now)
        if self.phase is Phase.STOPPING and self.stop_until is not None and now >= self.stop_until:
            for node in self.not_stopped():
                actions += lose(self, node, f"did not stop within {self.rules.stop_timeout_s:g} s", now=now)
        return actions

    def _advance(self, *, now: float) -> list[Action]:
        """Take every step that is due and needs no further event."""
        if self.phase is Phase.RUNNING:
            establish(self)
        actions = advance_check(self, now=now)
        if self.phase is Phase.RUNNING and self.is_inheriting:
            actions += conclude(self, now=now)
        if self.phase is Phase.RUNNING and not self.is_inheriting:
            actions += check_newcomers(self, now=now)
            actions += reconsider(self)
            actions += settle(self, now=now)
        if self.phase is Phase.STOPPING and not self.not_stopped():
            self.stop_until = None
            if self.outcome_after_stop is not None:
                return actions + finish(self, with_root_cause(self, self.outcome_after_stop))
            self.phase = Phase.GATHERING
            self.gather_until = now + self.rules.join_timeout_s
        if self.phase is Phase.GATHERING:
            actions += gather(self, now=now)
        return actions
