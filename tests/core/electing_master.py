"""The process of a master that may be elected, stopped, restarted and succeeded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from electing_stage import DELAY_S, RULES, TELL_S, Act, Attempt, Port, Process

from holdfast.core import job as jobs
from holdfast.core import workers
from holdfast.core.election import ELECTION_S, Candidacy, Election
from holdfast.core.ids import Address, Mastership, Run
from holdfast.core.job.succession import make_will
from holdfast.sim.timeline import Alarm

if TYPE_CHECKING:
    from electing import Node


class Master(Process):
    """The process of a master, with its journal."""

    def __init__(self, node: Node, port: Port, *, candidacy: Candidacy | None, journal: list[tuple[float, jobs.Event]]):
        super().__init__()
        self.stage, self.node, self.port, self.journal, self.candidacy = node.stage, node, port, journal, candidacy
        mastership = Mastership(0, node.name) if candidacy is None else candidacy.master
        self.job = jobs.Job(RULES, now=self.stage.now, master=mastership, host=node.name)
        self.members: dict[str, Attempt] = {}
        self.voters: list[tuple[Attempt, jobs.NodeRegistered]] = []
        self.successor: tuple[Mastership, Address] | None = None
        self.election: Election | None = None
        self._alarm = Alarm(self.stage.timeline, lambda: self.do(self._ring))
        port.master = self
        for then, event in journal:
            self.job.handle(event, now=then)
        if journal:
            self.step(jobs.MasterStarted())
        elif candidacy is not None:
            self.election = Election(candidacy, until=self.stage.now + ELECTION_S)
            self.stage.timeline.after(ELECTION_S, lambda: self.do(self._lose_election))
        if candidacy is not None:
            self.stage.timeline.after(DELAY_S, lambda: self.do(self._tell_predecessors))
        port.serve()

    def send(self, attempt: Attempt, act: Act) -> None:
        """To the node of a connection, if that still exists when the message arrives."""

        def arrive() -> None:
            if not self.stage.reaches(self.node, attempt.node):
                attempt.open = attempt.open and attempt.node is self.node
            elif attempt.open:
                attempt.node.do(act)

        self.stage.timeline.after(DELAY_S, arrive)

    def die(self) -> None:
        self.alive = False
        if self.port.master is self:
            self.port.master = None
        for attempt in [*self.members.values(), *(attempt for attempt, _ in self.voters)]:
            self.send(attempt, lambda attempt=attempt: attempt.node.lose(attempt))

    def go_on(self) -> None:
        super().go_on()
        self.port.serve()

    def register(self, attempt: Attempt, event: jobs.NodeRegistered, knows: tuple[int, int]) -> None:
        if self.successor is not None:
            master, address = self.successor
            self.send(attempt, lambda: attempt.node.be_sent_on(attempt, master, address))
        elif self.election is not None:
            trouble = self.election.vote(event.node, knows=knows, now=self.stage.now)
            self.voters.append((attempt, event))
            if trouble:
                self._lose_election()
            elif self.election.is_won:
                self._win_election()
        else:
            self.members[event.nonce] = attempt
            self.step(event)

    def step(self, event: jobs.Event) -> None:
        if self.successor is not None:
            return
        now = self.stage.now
        is_beat = isinstance(event, jobs.StatusReported) and self.job.is_old_news(event)
        actions = self.job.handle(event, now=now)
        if not is_beat and not jobs.changes_nothing(event, actions, rules=RULES):
            self.journal.append((now, event))
        for action in actions:
            self._perform(action)
        self._alarm.set(self.job.next_deadline())

    def _ring(self) -> None:
        deadline = self.job.next_deadline() if self.successor is None and self.election is None else None
        if deadline is None:
            return
        if self.stage.now >= deadline:
            self.step(self.job.passing(now=self.stage.now))
        self._alarm.set(self.job.next_deadline())

    def _perform(self, action: jobs.Action) -> None:
        match action:
            case jobs.Accept():
                self._tell(action.nonce, lambda node, attempt: node.be_accepted(attempt))
            case jobs.Refuse():
                self._tell(action.nonce, lambda node, attempt: node.be_refused(attempt))
            case jobs.Acknowledge():
                self._tell(action.nonce, lambda node, attempt: node.hear(attempt, action.seq))
            case jobs.Tell():
                if isinstance(action.order, Run):
                    self.stage.publish(self)
                self._tell(action.nonce, lambda node, attempt: node.handle(workers.OrderReceived(action.order)))
            case jobs.Bequeath():
                will = make_will(self.job, now=self.stage.now, num_told=0, elapsed_s=0.0)
                for member in self.job.members.values():
                    if will is not None and action.nonce in ("", member.nonce):
                        self._tell(member.nonce, lambda node, attempt, will=will: node.take_will(will))
            case jobs.Tale():
                self.stage.reached[type(action.record).__name__] += 1
                self.stage.reached["unseated"] += "stopped its workers" in str(action.record)

    def _tell(self, nonce: str, act: Callable[[Node, Attempt], None]) -> None:
        if (attempt := self.members.get(nonce)) is not None:
            self.send(attempt, lambda: act(attempt.node, attempt))

    # --- elections and what follows from them -----------------------------------------------------------------

    def _lose_election(self) -> None:
        if self.election is not None:
            self.stage.reached["election lost"] += 1
            for attempt, _ in self.voters:
                self.send(attempt, lambda attempt=attempt: attempt.node.be_refused(attempt))
            self.voters.clear()
            self.die()

    def _win_election(self) -> None:
        assert self.election is not None
        assert self.candidacy is not None
        candidacy, voters = self.candidacy, self.election.voters
        self.stage.reached["election won"] += 1
        self.election = None
        self.step(
            jobs.Inherited(
                candidacy.will, candidacy.master, candidacy.node, voters, candidacy.dead, candidacy.evidence, 0
            )
        )
        votes, self.voters = self.voters, []
        for attempt, event in votes:
            if attempt.open:
                self.register(attempt, event, (0, 0))

    def _tell_predecessors(self) -> None:
        assert self.candidacy is not None
        if self.election is None and self.successor is None:
            for address in self.candidacy.predecessors:
                other = self.stage.ports[address].master
                if other is not None and other is not self and self.stage.reaches(self.node, other.node):
                    other.do(lambda other=other: other.give_way(self.job.master, self.candidacy.address))
        self.stage.timeline.after(TELL_S, lambda: self.do(self._tell_predecessors))

    def give_way(self, master: Mastership, address: Address) -> None:
        known = self.job.master if self.successor is None else self.successor[0]
        host = self.members.get(self.node.nonce)
        is_told = self.successor is not None or (host is not None and host.open)
        if self.election is not None or master.term <= known.term or not is_told:
            return
        self.successor = (master, address)
        self.stage.reached["gave way"] += 1
        for attempt in self.members.values():
            self.send(attempt, lambda attempt=attempt: attempt.node.be_sent_on(attempt, master, address))
