"""The master's loop: one event at a time through the core, durable first, then performed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from holdfast.core import job as core
from holdfast.core.agreement import disagreements
from holdfast.core.ids import NodePhase, Order
from holdfast.core.job.succession import make_will
from holdfast.core.story import Record
from holdfast.errors import JobError
from holdfast.observe.entries import make_entry
from holdfast.stores.journal import Journal
from holdfast.wire.messages import Accepted, Ack, Bequest, Denied, Happened, Message, Moved, order_message

log = logging.getLogger(__name__)

OUTBOX_SIZE = 1024
INBOX_SIZE = 4096
STORY_SIZE = 10_000


class Member:
    """One open connection: a bounded outbox. A member too slow to read it is cut off and may reconnect."""

    def __init__(self, nonce: str, *, hears: Collection[str] = ()) -> None:
        self.nonce = nonce
        self._hears = hears
        """Kinds of entries of the story that it wants to be told; empty for all."""
        self.outbox: asyncio.Queue[Message | None] = asyncio.Queue(OUTBOX_SIZE)

    def send(self, message: Message) -> None:
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("a member does not read what it is sent; its connection is closed")
            self.close()

    def tell(self, entry: dict[str, Any]) -> None:
        if not self._hears or entry["kind"] in self._hears:
            self.send(Happened(entry))

    def close(self) -> None:
        while not self.outbox.empty():
            self.outbox.get_nowait()
        self.outbox.put_nowait(None)


class Driver:
    """Feeds the core and performs what it decides."""

    def __init__(
        self,
        job: core.Job,
        journal: Journal,
        *,
        offset_s: float,
        started_at: float,
        tell: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self.job = job
        self._tell = tell
        """Told every new entry of the story."""
        self.story: deque[dict[str, Any]] = deque(maxlen=STORY_SIZE)
        self._journal = journal
        self._offset_s = offset_s
        self._started_at = started_at
        self._seq = 0
        self._inbox: asyncio.Queue[core.Event] = asyncio.Queue(INBOX_SIZE)
        self._members: dict[str, Member] = {}
        self._changed = asyncio.Condition()
        self._hung_up = asyncio.Event()
        self._released: set[str] = set()
        """Those who have hung up since the job ended."""
        self.is_restored = False
        self._had_ended = False
        """Whether the job had ended when the journal was read: who has heard of it is not known."""
        self.successor: Moved | None = None
        """Set when another master has taken over: whoever comes here is sent there."""
        self.moved = asyncio.Event()
        """Set when another master has taken over, or has to, and all here know what they have to."""

    @classmethod
    def restore(
        cls,
        make_job: Callable[[float], core.Job],
        *,
        journal: Journal,
        elapsed_s: float = 0.0,
        tell: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> Driver:
        """The job as the journal left it, or one that began `elapsed_s` ago if the journal is empty."""
        now = time.monotonic()
        began = journal.started_at(now - elapsed_s)
        job = make_job(began)
        past = list(journal.replay())
        if not past:
            journal.keep_settings(job.rules.lasting)
            return cls(make_job(now), journal, offset_s=0.0, started_at=began, tell=tell)
        if differences := disagreements(job.rules.lasting, journal.settings(), whose=("now", "there")):
            advice = "start with those again, or with another recovery path"
            raise JobError(f"the state that is kept is of a job with other settings: {differences}; {advice}")
        # A monotonic clock starts anew with the machine; the job's time must not go back.
        last = past[-1][0]
        driver = cls(job, journal, offset_s=max(0.0, last - now), started_at=began, tell=tell)
        for then, wall, event in past:
            driver._continue_story(event)
            for action in driver.job.handle(event, now=then):
                if isinstance(action, core.Tale):
                    driver._tell_story(action.record, now=then, wall=wall)
        driver.is_restored, driver._had_ended = True, driver.job.outcome is not None
        driver._step(core.MasterStarted())
        return driver

    def now(self) -> float:
        return time.monotonic() + self._offset_s

    def elapsed_s(self) -> float:
        return round(self.now() - self._started_at, 6)

    def inherit(self, event: core.Inherited) -> None:
        """Go on where another master was lost."""
        self._continue_story(event)
        self._step(event)

    def move(self, moved: Moved) -> bool:
        """Give way to another master; False if it has no right to that, or the node that hosts this one is not there
        to be told: it would start this one again."""
        host = self.job.members.get(self.job.host)
        told = not self.job.host or self.successor is not None or (host is not None and host.nonce in self._members)
        term = self.job.master.term if self.successor is None else self.successor.master.term
        if self.job.outcome is not None or moved.master.term <= term or not told:
            return False
        self.give_way(moved)
        return True

    def give_way(self, moved: Moved) -> None:
        for member in self._members.values():
            member.send(moved)
        self.successor = moved
        self.moved.set()

    async def put(self, event: core.Event) -> None:
        await self._inbox.put(event)

    async def run(self) -> None:
        while True:
            deadline = self.job.next_deadline()
            timeout = None if deadline is None else max(0.0, deadline - self.now())
            event: core.Event | None = None
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with an event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    event = await self._inbox.get()
            self._step(event or self.job.passing(now=self.now()))
            await self.wake_readers()

    # --- members ----------------------------------------------------------------------------------------------

    def attach(self, member: Member, *, seen: int) -> None:
        """Take up a connection, and tell it what it missed of the story while there was none."""
        if old := self._members.get(member.nonce):
            old.close()
        self._members[member.nonce] = member
        for entry in self.story if seen >= 0 else ():
            if entry["seq"] > seen:
                member.tell(entry)

    def detach(self, member: Member) -> None:
        if self._members.get(member.nonce) is member:
            del self._members[member.nonce]
            if self.job.outcome is not None:
                self._released.add(member.nonce)
        self._hung_up.set()

    async def all_gone(self, *, linger_s: float) -> None:
        """Return when the job has ended and its nodes have heard of that and hung up, or have had time to.

        Who was given up is not waited for: it may be stopped and never hang up.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.job.outcome is not None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(linger_s):
                while any(map(self._is_awaited, self.job.members.values())):
                    self._hung_up.clear()
                    await self._hung_up.wait()

    def _is_awaited(self, node: core.Member) -> bool:
        """Whether a node is here, or is one that nobody starts again and that has to come back to hear of the end."""
        if self.job.rules.is_launched or node.nonce in self._members:
            return node.nonce in self._members
        knows = node.status.phase is NodePhase.SUCCEEDED and not self._had_ended
        return not knows and node.nonce not in self._released

    # --- the story --------------------------------------------------------------------------------------------

    async def entries(self, *, after: int) -> AsyncIterator[dict[str, Any]]:
        """Entries with a number above `after`, then those that come, until the job has ended or has another master."""
        while True:
            for entry in [entry for entry in self.story if entry["seq"] > after]:
                after = entry["seq"]
                yield entry
            if self.job.outcome is not None or self.successor is not None:
                return
            async with self._changed:
                while self._seq <= after and self.successor is None:
                    await self._changed.wait()

    async def wake_readers(self) -> None:
        """Something has changed for those who wait for more of the story."""
        async with self._changed:
            self._changed.notify_all()

    def _continue_story(self, event: core.Event) -> None:
        if isinstance(event, core.Inherited):
            self._seq = event.num_told

    def _tell_story(self, record: Record, *, now: float, wall: float) -> dict[str, Any]:
        self._seq += 1
        entry = make_entry(record, seq=self._seq, elapsed_s=round(now - self._started_at, 6), wall=wall)
        self.story.append(entry)
        return entry

    # --- one step ---------------------------------------------------------------------------------------------

    def _step(self, event: core.Event) -> None:
        now, wall = self.now(), time.time()
        beat = isinstance(event, core.StatusReported) and self.job.is_old_news(event)
        actions = self.job.handle(event, now=now)
        if not beat and not core.changes_nothing(event, actions, rules=self.job.rules):
            self._journal.append(event, now=now, wall=wall)
        for action in actions:
            self._perform(action, now=now, wall=wall)
        if self.job.is_left_to_others:
            self.moved.set()

    def _perform(self, action: core.Action, *, now: float, wall: float) -> None:
        match action:
            case core.Accept():
                self._send(action.nonce, Accepted())
            case core.Refuse():
                self._send(action.nonce, Denied(action.reason, action.retry_after_s))
            case core.Acknowledge():
                self._send(action.nonce, Ack(action.seq))
            case core.Tell():
                self._order(action.nonce, action.order)
            case core.Bequeath():
                self._bequeath(action.nonce, now=now)
            case core.Tale():
                entry = self._tell_story(action.record, now=now, wall=wall)
                self._tell(entry)
                for member in list(self._members.values()):
                    member.tell(entry)

    def _bequeath(self, nonce: str, *, now: float) -> None:
        will = make_will(self.job, now=now, num_told=self._seq, elapsed_s=self.elapsed_s())
        if will is None:
            return
        brief, heirs = will.brief(), {deputy.node for deputy in will.deputies}
        for node, member in self.job.members.items():
            if nonce in ("", member.nonce):
                self._send(member.nonce, Bequest(will if node in heirs else brief))

    def _order(self, nonce: str, order: Order) -> None:
        self._send(nonce, order_message(order))

    def _send(self, nonce: str, message: Message) -> None:
        if member := self._members.get(nonce):
            member.send(message)
