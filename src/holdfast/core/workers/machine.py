"""The machine: one event in, actions out."""

from __future__ import annotations

from holdfast.core.ids import Check, Finish, Leave, Order, Prepare, Run, Stop
from holdfast.core.workers.events import (
    Action,
    Bequeathed,
    Event,
    Heard,
    LaunchFailed,
    MasterDied,
    MasterHosted,
    NoticeHeeded,
    OrderReceived,
    Paced,
    Parked,
    Probed,
    SignalReceived,
    StateLost,
    StateSought,
    StepCommitted,
    StepFailed,
    StoreDied,
    Swept,
    TimePassed,
    WorkerAttached,
    WorkerExited,
    WorkerRaised,
    WorkerStarted,
)
from holdfast.core.workers.failing import (
    kill_dying,
    note_exit,
    note_fault,
    note_lost_state,
    note_raised,
    note_store_death,
)
from holdfast.core.workers.measuring import note_commit, note_pace, note_probed, note_resumption, probe
from holdfast.core.workers.silence import fence_at, go_silent, note_master_death, revive, revive_at
from holdfast.core.workers.starting import note_attached, note_launch_failure, note_parked, note_start, prepare, run
from holdfast.core.workers.state import State
from holdfast.core.workers.stopping import finish, give_up, leave, obey_signal, obey_stop, pass_signal_on, settle, sweep


class WorkerGroup(State):
    """One node's workers, through all generations."""

    def handle(self, event: Event, *, now: float) -> list[Action]:
        match event:
            case OrderReceived():
                return self._obey(event.order, now=now)
            case Heard():
                self.heard_at = max(self.heard_at, event.sent_at)
                return []
            case MasterHosted():
                self.hosts_master, self.master_since = event.here, now
                return []
            case MasterDied():
                return note_master_death(self, now=now)
            case Bequeathed():
                self.is_bequeathed = True
                return []
            case WorkerStarted():
                return note_start(self, event, now=now)
            case LaunchFailed():
                return note_launch_failure(self, event, now=now)
            case WorkerExited():
                return note_exit(self, event, now=now)
            case WorkerAttached():
                return note_attached(self, event.pid, now=now)
            case Parked():
                return note_parked(self, event.count, now=now)
            case StepFailed():
                return note_fault(self, event, now=now)
            case WorkerRaised():
                return note_raised(self, event.pid, now=now)
            case StepCommitted():
                return note_commit(self, event, now=now)
            case NoticeHeeded():
                return pass_signal_on(self, event.pid)
            case StateLost():
                return note_lost_state(self, event, now=now)
            case StateSought():
                return note_resumption(self, event.found, now=now)
            case StoreDied():
                return note_store_death(self, event, now=now)
            case Swept():
                return settle(self, now=now)
            case Probed():
                return note_probed(self, event.result, now=now)
            case Paced():
                return note_pace(self, event.pace, now=now)
            case SignalReceived():
                return obey_signal(self, event.number, now=now)
            case TimePassed():
                return self._expire(now=now)
        raise AssertionError(f"an event nobody handles: {event}")

    def next_deadline(self) -> float | None:
        dates = (self.beat_at, self.kill_at, self.give_up_at, fence_at(self), revive_at(self), *self.dying.values())
        return min(date for date in dates if date is not None)

    def _obey(self, order: Order, *, now: float) -> list[Action]:
        match order:
            case Run():
                return run(self, order.world, now=now)
            case Prepare():
                return prepare(self, order.world)
            case Stop():
                return obey_stop(self, order, now=now)
            case Check():
                return probe(self, order)
            case Leave():
                return leave(self, order.reason, now=now)
            case Finish():
                return finish(self, order.outcome, now=now)
        raise AssertionError(f"an order nobody handles: {order}")

    def _expire(self, *, now: float) -> list[Action]:
        actions = kill_dying(self, now=now)
        if self.kill_at is not None and now >= self.kill_at:
            actions += sweep(self)
        fence = fence_at(self)
        if fence is not None and now >= fence:
            actions += go_silent(self)
        stuck_at = revive_at(self)
        if stuck_at is not None and now >= stuck_at:
            actions += revive(self, late_s=now - stuck_at, now=now)
        if self.give_up_at is not None and now >= self.give_up_at and self.end_job is not None:
            actions += give_up(self)
        if now >= self.beat_at:
            actions.append(self.report(now=now))
        return actions
