"""Nodes that lose their master and elect another one: the real cores over made-up processes and a made-up network.

A master, an agent and its link do here what their shells do; only what they decide is the real thing.
"""

from __future__ import annotations

from collections.abc import Callable

from driving import registration
from electing_master import Master
from electing_stage import DELAY_S, LIMITS, RESTART_S, RULES, Act, Attempt, Port, Process, Stage

from holdfast.core import job as jobs
from holdfast.core import workers
from holdfast.core.election import ELECTION_S, Candidacy
from holdfast.core.ids import Address, Mastership, NodePhase, NodeStatus
from holdfast.core.search import Search
from holdfast.sim.timeline import Alarm


def gather(seed: int, *, num_nodes: int) -> Stage:
    """A job of so many nodes, the first of which hosts the master."""
    stage = Stage(seed)
    stage.nodes += [Node(stage, name) for name in "abcdef"[:num_nodes]]
    return stage


class Node(Process):
    """One agent, with its worker, its link and the master that it may host."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__()
        self.stage, self.name, self.nonce = stage, name, name
        self.has_power = True
        self.home, self.own = Address("host-a", 1), Address(f"host-{name}", 2)
        self.deputy = stage.ports[self.own] = Port(self)
        hosts = name == "a"
        if hosts:
            stage.ports[self.home] = Port(self)
        self.group = workers.WorkerGroup(workers.GroupSpec(name, RULES, 1.0, 1.0, hosts), now=stage.now)
        self.search = Search(self.home, node=name, nonce=name, lease_s=RULES.lease_s)
        self.hosted: Master | None = None
        self.num_live = 0
        self.awake_since = stage.now
        self.pid = 0
        self.heard_at = stage.now
        self.attempt: Attempt | None = None
        self.status = NodeStatus(NodePhase.READY, 0)
        self.seq = 0
        self._alarm = Alarm(stage.timeline, lambda: self.do(self._ring))
        if hosts:
            self.hosted = Master(self, stage.ports[self.home], candidacy=None, journal=[])
        stage.timeline.after(DELAY_S, lambda: self.do(self.look))
        self._alarm.set(self.group.next_deadline())

    @property
    def is_host(self) -> bool:
        """Whether the master is here, and not only a candidate."""
        return self.hosted is not None and self.hosted.election is None

    def is_training(self, now: float) -> bool:
        """Whether its worker can do anything: not while it is stopped, nor before the agent had time to wake up."""
        return bool(self.num_live) and not self.is_stopped and now > self.awake_since + 3 * DELAY_S

    def go_on(self) -> None:
        self.awake_since = self.stage.now
        super().go_on()

    # --- its end ----------------------------------------------------------------------------------------------

    def die(self, *, has_power: bool) -> None:
        """The agent is gone and all that it started, perhaps with the whole machine."""
        self.alive, self.num_live = False, 0
        masters = {id(port.master): port.master for port in self.stage.ports.values() if port.node is self}
        for master in masters.values():
            if master is not None:
                self.has_power = has_power
                master.die()
        self.has_power = has_power
        attempt = self.attempt
        if has_power and attempt is not None and attempt.open and (master := attempt.master) is not None:
            died = jobs.AgentDied(self.name, self.nonce, "dead")
            if self.stage.reaches(self, master.node):
                self.stage.timeline.after(2 * DELAY_S, lambda: master.do(lambda: master.step(died)))

    def restart_master(self) -> None:
        """The process of the master has died, or is killed."""
        master = self.hosted
        if master is None or not master.alive:
            return
        master.die()
        self.do(lambda: self.handle(workers.MasterDied()))

        def begin() -> None:
            if self.alive and self.hosted is master:
                self.hosted = Master(self, master.port, candidacy=master.candidacy, journal=master.journal)

        self.stage.timeline.after(RESTART_S, lambda: self.do(begin))

    # --- its workers ------------------------------------------------------------------------------------------

    def handle(self, event: workers.Event) -> None:
        for action in self.group.handle(event, now=self.stage.now):
            self._perform(action)
        self._alarm.set(self.group.next_deadline())

    def _ring(self) -> None:
        deadline = self.group.next_deadline()
        if deadline is not None and self.stage.now >= deadline:
            self.handle(workers.TimePassed())
        self._alarm.set(self.group.next_deadline())

    def later(self, act: Act) -> None:
        self.stage.timeline.after(DELAY_S, lambda: self.do(act))

    def _perform(self, action: workers.Action) -> None:
        match action:
            case workers.Report():
                self.seq, self.status = action.seq, action.status
                self._report()
            case workers.Launch():
                self.stage.begin(action.world.generation)
                self.later(self._start_worker)
            case workers.Invite():
                generation = action.world.generation
                self.stage.begin(generation)
                self.later(lambda: self.handle(workers.StepCommitted(self.pid, generation, {})))
            case workers.Sweep():
                self.stage.reached["fenced"] += "cut off" in self.group.reason
                self.later(self._end_worker)
            case workers.Forward():
                pid = self.pid
                self.later(lambda: self._exit_worker(pid, action.signal))
            case workers.ReviveMaster():
                self.stage.reached["revived"] += 1
                self.restart_master()
            case _:
                pass

    def _start_worker(self) -> None:
        if self.group.pending:
            self.pid += 1
            self.num_live = 1
            pid, generation = self.pid, self.group.generation
            self.handle(workers.WorkerStarted(0, pid))
            self.handle(workers.WorkerAttached(pid))
            self.later(lambda: self.handle(workers.StepCommitted(pid, generation, {})))

    def _exit_worker(self, pid: int, number: int) -> None:
        if self.num_live and self.pid == pid:
            self.num_live = 0
            self.handle(workers.WorkerExited(0, pid, None, number))

    def _end_worker(self) -> None:
        self.num_live = 0
        self.handle(workers.Swept())

    # --- its link ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        choice = self.search.next(silent_s=self.stage.now - self.heard_at, now=self.stage.now)
        attempt = self.attempt = Attempt(self, self.stage.now, isinstance(choice, Candidacy))
        greet_s, accept_s = 5.0, 2 * ELECTION_S
        if isinstance(choice, Candidacy):
            self.stage.reached["stood"] += 1
            self._withdraw()
            self.hosted = Master(self, self.deputy, candidacy=choice, journal=[])
            self.stage.on_stand(self)
        else:
            greet_s, accept_s = choice.greet_s, min(choice.accept_s, self.search.answer_s - RULES.beat_s)
        port = self.stage.ports[choice.address]
        if self.stage.reaches(self, port.node) and not port.node.alive:
            self.later(lambda: self._fail(attempt, "refused"))
            return
        self.stage.timeline.after(greet_s, lambda: self.do(lambda: self._lose_patience(attempt, greeted=False)))
        if accept_s < 100.0:
            timeout_s = greet_s + accept_s
            self.stage.timeline.after(timeout_s, lambda: self.do(lambda: self._lose_patience(attempt, greeted=True)))

        def arrive() -> None:
            if self.stage.reaches(self, port.node):
                port.queue.append(attempt)
                port.serve()

        self.stage.timeline.after(DELAY_S, arrive)

    def greet(self, attempt: Attempt, master: Mastership) -> None:
        if attempt is not self.attempt or attempt.master is None:
            return
        if not self.search.may_follow(master):
            is_usurped = self.search.is_usurped(by=master)
            self.stage.reached["usurped" if is_usurped else "not followed"] += 1
            self._fail(attempt, "usurped" * is_usurped)
            return
        registered = registration(self.name, status=self.status, num_workers=1)
        event = jobs.NodeRegistered(
            *(getattr(registered, name) for name in ("node", "nonce", "host", "pid", "num_workers", "store")),
            wanted_rank=None,
            job_id="job",
            nodes=LIMITS,
            status=self.status,
            deputy=self.own,
        )
        self._send(attempt, lambda there, knows=self.search.version: there.register(attempt, event, knows))

    def be_accepted(self, attempt: Attempt) -> None:
        if attempt is self.attempt:
            attempt.connected = True
            self.search.be_accepted()
            if attempt.is_candidate:
                self.handle(workers.MasterHosted(True))
            self._note_heard(attempt.dial_at)
            self._report()

    def be_refused(self, attempt: Attempt) -> None:
        if attempt is self.attempt:
            self.search.be_released()
            self._fail(attempt, "")

    def be_sent_on(self, attempt: Attempt, master: Mastership, address: Address) -> None:
        if attempt is self.attempt:
            self.search.redirect(address, master)
            self.hosted = None
            self.handle(workers.MasterHosted(False))
            self._look_again(attempt)

    def take_will(self, will: jobs.Will) -> None:
        self.search.take_will(will, now=self.stage.now)
        self.handle(workers.Bequeathed())

    def hear(self, attempt: Attempt, seq: int) -> None:
        if attempt is self.attempt and seq in attempt.unanswered:
            self._note_heard(attempt.unanswered.pop(seq))

    def lose(self, attempt: Attempt) -> None:
        """The connection is closed by the other side."""
        if attempt is not self.attempt:
            return
        if attempt.connected:
            self._look_again(attempt)
        else:
            self.stage.reached["candidate vanished"] += 1
            self._fail(attempt, "")

    def _note_heard(self, sent_at: float) -> None:
        self.heard_at = max(self.heard_at, sent_at)
        self.handle(workers.Heard(sent_at))

    def _report(self) -> None:
        attempt = self.attempt
        if attempt is None or not attempt.connected:
            return
        event = jobs.StatusReported(self.name, self.nonce, self.seq, self.status)
        attempt.unanswered[self.seq] = self.stage.now
        self._send(attempt, lambda there: there.step(event))
        patience_s = self.search.answer_s - RULES.beat_s
        if patience_s < 100.0:
            seq = self.seq
            self.stage.timeline.after(patience_s, lambda: self.do(lambda: self._hang_up(attempt, seq)))

    def _send(self, attempt: Attempt, act: Callable[[Master], None]) -> None:
        there = attempt.master
        assert there is not None, "somebody has answered"

        def arrive() -> None:
            if attempt.open and self.stage.reaches(self, there.node):
                there.do(lambda: act(there) if attempt.open else None)

        self.stage.timeline.after(DELAY_S, arrive)

    def _hang_up(self, attempt: Attempt, seq: int) -> None:
        if attempt is self.attempt and seq in attempt.unanswered:
            self._look_again(attempt)

    def _lose_patience(self, attempt: Attempt, *, greeted: bool) -> None:
        if attempt is not self.attempt or attempt.connected or (attempt.master is not None) != greeted:
            return
        if attempt.is_candidate:
            self._withdraw()
            self.search.be_released()
        self._fail(attempt, "")

    def _withdraw(self) -> None:
        master, self.hosted = self.hosted, None
        if master is not None:
            self.stage.reached["withdrawn"] += 1
            master.die()

    def _fail(self, attempt: Attempt, proof: str) -> None:
        attempt.open, self.attempt = False, None
        if self.search.fail(proof=proof, silent_s=self.stage.now - self.heard_at):
            self.later(self.look)
        else:
            self._look_again(attempt)

    def _look_again(self, attempt: Attempt) -> None:
        attempt.open, self.attempt = False, None
        pause_s = self.stage.rng.uniform(0.05, 0.3)
        self.stage.timeline.after(pause_s, lambda: self.do(self.look))
