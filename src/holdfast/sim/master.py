"""The master: the real `Job`, a journal that survives it, and a shell that does as `master/driver.py` does."""

from __future__ import annotations

from collections import deque

from holdfast.core import job as core
from holdfast.core.story import JobFinished
from holdfast.sim.link import FromMaster, Link
from holdfast.sim.network import Way
from holdfast.sim.stage import Stage
from holdfast.sim.timeline import Alarm
from holdfast.sim.witness import Witness

LINGER_S = 5.0
"""How long a finished master stays for nodes that have not heard of the end."""


class Master:
    """One master after another on one journal."""

    def __init__(self, stage: Stage) -> None:
        self.up = True
        self.gone = False
        """Nobody will start it again."""
        self.dies_half_way = False
        """It dies in its next step: what it decided is durable, and nobody was told."""
        self._stage = stage
        self._began_at = stage.timeline.now
        """As durable as the journal: some deadlines count from here."""
        self._job = core.Job(stage.setup.rules, now=self._began_at)
        self._journal: list[tuple[float, core.Event]] = []
        self._connections: dict[str, tuple[Link, int]] = {}
        self._knocking: list[tuple[Link, int, core.NodeRegistered]] = []
        self._inbox: deque[core.Event] = deque()
        self._stalls = 0
        self._alarm = Alarm(stage.timeline, self._ring)
        self._witness = Witness(stage)
        self._lives = 0

    @property
    def job(self) -> core.Job:
        return self._job

    def start(self) -> None:
        self._alarm.set(self._job.next_deadline())

    # --- what others do to it ---------------------------------------------------------------------------------

    def dialled(self, link: Link, connection: int, event: core.NodeRegistered) -> None:
        if self.up:
            if (old := self._connections.get(event.nonce)) is not None and old[1] != connection:
                self._break(*old)
            self._connections[event.nonce] = (link, connection)
            self.put(event)
        elif self._stage.setup.hosted and not self.gone:
            # The host keeps the listening socket: those who dial wait in its queue.
            self._knocking.append((link, connection, event))
        else:
            self._stage.network.send(link.machine, Way.DOWN, lambda: link.refuse(connection))

    def reported(self, link: Link, connection: int, event: core.StatusReported) -> None:
        if self.up and event.nonce in self._connections:
            self.put(event)
        else:
            self._stage.network.send(link.machine, Way.DOWN, lambda: link.lose(connection))

    def hung_up(self, nonce: str, proof: core.AgentDied | None) -> None:
        """A connection was closed from the other side, with or without proof that the agent is dead."""
        if self.up and self._connections.pop(nonce, None) is not None and proof is not None:
            self.put(proof)

    def put(self, event: core.Event) -> None:
        if not self.up:
            return
        if self._stalls:
            self._inbox.append(event)
        else:
            self._step(event)

    def stall(self, for_s: float) -> None:
        """Let it answer nobody for a while; events queue up and are older than deadlines when it goes on."""
        if self.up:
            life = self._lives
            self._stalls += 1
            self._stage.timeline.after(for_s, lambda: self._go_on(life))

    def crash(self, *, down_s: float) -> None:
        if not self.up:
            return
        trace, before = self._stage.trace, _digest(self._job)
        trace.say("master dies")
        self.up = False
        self._lives += 1
        self._stalls = 0
        self._inbox.clear()
        for link, connection in self._connections.values():
            self._break(link, connection)
        self._connections.clear()
        self._stage.timeline.after(down_s, lambda: self._restore(before))

    def end(self) -> None:
        """It has served its time."""
        if not self.gone:
            self._stage.trace.say("master ends")
        self.up, self.gone = False, True
        for link, connection in self._connections.values():
            self._break(link, connection)
        self._connections.clear()

    # --- the loop ---------------------------------------------------------------------------------------------

    def _step(self, event: core.Event) -> None:
        now, job = self._stage.timeline.now, self._job
        beat = isinstance(event, core.StatusReported) and self._job.is_old_news(event)
        self._witness.see(event, job)
        actions = job.handle(event, now=now)
        if not beat and not core.changes_nothing(event, actions, rules=job.rules):
            self._journal.append((now, event))
            if self.dies_half_way:
                self.dies_half_way = False
                self._stage.trace.reach("master died between deciding and telling")
                self.crash(down_s=self._stage.rng.uniform(0.1, 1.0))
                return
        for action in actions:
            self._perform(action)
        self._alarm.set(job.next_deadline())

    def _ring(self) -> None:
        if not self.up or self._stalls:
            return
        deadline, now = self._job.next_deadline(), self._stage.timeline.now
        if deadline is not None and now >= deadline:
            self._step(self._job.passing(now=now))
            after = self._job.next_deadline()
            self._stage.trace.require(not self.up or after is None or after > now, "the master stands still in time")
        self._alarm.set(self._job.next_deadline())

    def _go_on(self, life: int) -> None:
        if life != self._lives:
            return
        self._stalls -= 1
        while self.up and self._inbox and not self._stalls:
            self._step(self._inbox.popleft())
        self._ring()

    def _restore(self, before: object) -> None:
        if self.gone:
            return
        self._job = core.Job(self._stage.setup.rules, now=self._began_at)
        for then, event in self._journal:
            self._job.handle(event, now=then)
        self._stage.trace.require(_digest(self._job) == before, "the journal tells another story than the master")
        self.up = True
        if self._journal:
            self._step(core.MasterStarted())
        if self._job.outcome is not None:
            self._stage.timeline.after(LINGER_S, self.end)
        knocking, self._knocking = self._knocking, []
        for link, connection, registered in knocking:
            self.dialled(link, connection, registered)
        self._ring()

    # --- effects ----------------------------------------------------------------------------------------------

    def _perform(self, action: core.Action) -> None:
        match action:
            case core.Accept() | core.Refuse() | core.Acknowledge():
                self._send(action.nonce, action)
            case core.Tell():
                self._send(action.nonce, action.order)
            case core.Tale():
                self._witness.hear(action.record)
                if isinstance(action.record, JobFinished):
                    self._stage.timeline.after(LINGER_S, self.end)

    def _send(self, nonce: str, message: FromMaster) -> None:
        if (found := self._connections.get(nonce)) is not None:
            link, connection = found
            self._stage.network.send(link.machine, Way.DOWN, lambda: link.receive(connection, message))

    def _break(self, link: Link, connection: int) -> None:
        self._stage.network.send(link.machine, Way.DOWN, lambda: link.lose(connection))


def _digest(job: core.Job) -> object:
    """What a replay must bring back: everything but leases and what only beats change."""
    members = {
        name: (member.registered, member.status, member.previous_rank, member.ready_at)
        for name, member in job.members.items()
    }
    return (job.phase, job.generation, job.restart_count, job.world, job.outcome, job.waiting_reason, members)
