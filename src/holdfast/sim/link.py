"""An agent's connection to the master, dialled again and again, as `agent/link.py` does with real sockets.

An answer counts from when the question was sent: only then is a late answer no reason to live longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.core import job, workers
from holdfast.core.backoff import Backoff
from holdfast.core.ids import Order
from holdfast.sim.network import Way
from holdfast.sim.stage import Stage

ACCEPT_LEASES = 1.5
"""How many leases a link waits for the master's word before it dials again: a real one may wait as long."""

FromMaster = job.Accept | job.Refuse | job.Acknowledge | Order


class Door(Protocol):
    """Where the master is reached."""

    def dialled(self, link: Link, connection: int, event: job.NodeRegistered) -> None: ...

    def reported(self, link: Link, connection: int, event: job.StatusReported) -> None: ...


class Link:
    """Registers, reports, and hands on what the master says."""

    def __init__(
        self,
        stage: Stage,
        door: Door,
        *,
        machine: str,
        registered: Callable[[workers.Report], job.NodeRegistered],
        tell: Callable[[workers.Event], None],
        give_up: Callable[[str], None],
    ) -> None:
        self.machine = machine
        self.connection = 0
        self.closed = False
        self._stage = stage
        self._door = door
        self._registered = registered
        self._tell = tell
        self._give_up = give_up
        self._latest: workers.Report | None = None
        self._accepted = False
        self._dialled_at = 0.0
        self._sent_at: dict[int, float] = {}
        self._attempt = 0
        self._since = stage.timeline.now

    def report(self, report: workers.Report) -> None:
        self._latest = report
        if self._accepted:
            self._send()

    def dial(self) -> None:
        if self.closed:
            return
        assert self._latest is not None, "the first status precedes the link"
        self.connection += 1
        self._accepted = False
        self._dialled_at = self._stage.timeline.now
        connection, event = self.connection, self._registered(self._latest)
        self._stage.network.send(self.machine, Way.UP, lambda: self._door.dialled(self, connection, event))
        patience_s = ACCEPT_LEASES * self._stage.setup.rules.lease_s
        self._stage.timeline.after(patience_s, lambda: None if self._accepted else self.lose(connection))

    def lose(self, connection: int) -> None:
        """The connection is gone."""
        if self.closed or connection != self.connection:
            return
        if self._accepted:
            self._attempt, self._since = 0, self._stage.timeline.now
        self._accepted = False
        # Nothing that still comes through this connection is read.
        self.connection += 1
        limit_s = self._stage.setup.rules.join_timeout_s
        if self._stage.timeline.now - self._since >= limit_s:
            self._give_up(f"no master within {limit_s:g} s")
            return
        delay_s = Backoff().delay_s(self._attempt, draw=self._stage.rng.random())
        self._attempt += 1
        self._stage.timeline.after(delay_s, self.dial)

    def refuse(self, connection: int) -> None:
        """The master's host is there and says that nobody listens: a dead master replaces nobody."""
        if self.closed or connection != self.connection:
            return
        self._tell(workers.Heard(self._dialled_at))
        self.lose(connection)

    def receive(self, connection: int, message: FromMaster) -> None:
        if self.closed or connection != self.connection:
            return
        match message:
            case job.Accept():
                self._accepted = True
                self._sent_at.clear()
                self._tell(workers.Heard(self._dialled_at))
                self._send()
            case job.Refuse():
                if message.retry_after_s is None:
                    self._give_up(f"refused: {message.reason}")
                else:
                    self.lose(connection)
            case job.Acknowledge():
                if (sent_at := self._sent_at.pop(message.seq, None)) is not None:
                    self._tell(workers.Heard(sent_at))
            case _:
                self._tell(workers.OrderReceived(message))

    def _send(self) -> None:
        report = self._latest
        assert report is not None, "the first status precedes the link"
        self._sent_at[report.seq] = self._stage.timeline.now
        connection, registered = self.connection, self._registered(report)
        event = job.StatusReported(registered.node, registered.nonce, report.seq, report.status)
        self._stage.network.send(self.machine, Way.UP, lambda: self._door.reported(self, connection, event))
