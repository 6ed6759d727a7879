"""Whatever happens to a job, in whatever order: some things hold after every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

from driving import PIDS, failure, registration, rules
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import job
from holdfast.core.ids import Finish, NodePhase, NodeStatus, Order, Prepare, Run, StepFault, Stop
from holdfast.core.story import IncidentOpened, WorldFormed
from holdfast.spec.job import JobRules
from holdfast.spec.strategy import Strategy

NODES = "abcdef"
ACTIVE = (NodePhase.RUNNING, NodePhase.BROKEN)
CALM_TURNS = 200
"""Of half a lease each: longer than all that a job may wait for, one after the other."""
REACHED: Counter[str] = Counter()


class Peer:
    """A node that does what it was last told to, when it is asked what it does."""

    def __init__(self, node: str, number: int, *, attached: bool) -> None:
        self.node = node
        self.nonce = f"{node}{number}"
        self.attached = attached
        self.seq = 0
        self.status = NodeStatus(NodePhase.READY, 0)
        self.order: Order | None = None
        self.past: list[job.StatusReported] = []

    def say(self, status: NodeStatus) -> job.StatusReported:
        self.seq += 1
        self.status = status
        event = job.StatusReported(self.node, self.nonce, self.seq, status)
        self.past.append(event)
        return event

    def obey(self) -> job.StatusReported:
        """One step towards what was ordered, or a beat."""
        status = self.status
        match self.order:
            case Run(world=world) if world.generation > status.generation and self.can_run(repairs=world.repairs):
                can = {"attached": self.attached, "saves": self.attached}
                status = NodeStatus(NodePhase.RUNNING, world.generation, pids=PIDS, **can)
            case Stop(generation=generation) if status.phase is not NodePhase.LEAVING:
                is_off = status.called_off or status.phase in ACTIVE
                status = NodeStatus(NodePhase.READY, max(generation, status.generation), called_off=is_off)
        return self.say(status)

    def can_run(self, *, repairs: bool) -> bool:
        return self.status.phase is NodePhase.READY or (repairs and self.status.phase in ACTIVE)

    def park(self) -> job.StatusReported:
        """Its processes have come to their loop, if it was told to prepare."""
        waits = isinstance(self.order, Prepare) and self.status.phase is NodePhase.READY
        return self.say(replace(self.status, parked=len(PIDS)) if waits else self.status)

    def commit(self) -> job.StatusReported:
        is_well = self.attached and self.status.phase is NodePhase.RUNNING
        return self.say(replace(self.status, committed=self.status.generation) if is_well else self.status)

    def break_down(self, how: float) -> job.StatusReported:
        """Workers are lost, or fail a step; without the SDK, the others are stopped then."""
        status, step = self.status, int(how * 30) % 3
        if status.phase not in ACTIVE:
            return self.say(status)
        num_lost = 2 if how < 0.1 else 1 if how < 0.4 else 0
        lost = tuple(failure(rank, node=self.node, error="ValueError: bug", step=step) for rank in range(num_lost))
        if not self.attached:
            return self.say(replace(status, phase=NodePhase.DRAINING, pids=(), failures=lost))
        kind = "link" if how < 0.8 else "communication"
        faults = () if lost else (StepFault(0, self.node, step, kind, "LinkDown: eth0"),)
        pids = (0,) * num_lost + PIDS[num_lost:]
        return self.say(replace(status, phase=NodePhase.BROKEN, pids=pids, failures=lost, faults=faults))

    def fence(self, how: float) -> job.StatusReported:
        """It has heard nobody, and kills its workers."""
        status = self.status
        if status.phase is NodePhase.DRAINING:
            return self.say(replace(status, phase=NodePhase.READY))
        if status.phase not in ACTIVE:
            return self.say(status)
        phase = NodePhase.READY if how < 0.5 else NodePhase.DRAINING
        return self.say(NodeStatus(phase, status.generation, status.failures, reason="cut off", called_off=True))

    def calm_down(self, *, hangs: bool) -> job.StatusReported:
        """Whatever is under way comes to its end, and nothing else happens; but one that hangs commits no step."""
        status = self.status
        if status.phase is NodePhase.DRAINING:
            return self.say(replace(status, phase=NodePhase.READY))
        if status.phase is NodePhase.LEAVING:
            return self.say(NodeStatus(NodePhase.LEFT, status.generation, reason="gone"))
        if status.phase is NodePhase.BROKEN and not any(status.pids):
            return self.say(NodeStatus(NodePhase.READY, status.generation, failures=status.failures))
        self.obey()
        if not hangs:
            self.commit()
        return self.park()

    def change(self, phase: NodePhase) -> job.StatusReported:
        """A turn that nobody ordered, if this node could take it."""
        if self.status.phase is not NodePhase.RUNNING:
            return self.say(self.status)
        return self.say(replace(self.status, phase=phase, pids=(), attached=False, reason="so it is"))


class History:
    """A job, its peers, its clock and its journal."""

    def __init__(self, the_rules: JobRules, *, attached: bool) -> None:
        self.rules = the_rules
        self.attached = attached
        """Whether the script uses the SDK."""
        self.now = 0.0
        self.job = job.Job(the_rules, now=0.0)
        self.peers: dict[str, Peer] = {}
        self.journal: list[tuple[float, job.Event]] = []
        self.num_peers = 0

    def step(self, event: job.Event) -> None:
        known = isinstance(event, job.StatusReported) and self.job.is_old_news(event)
        was_over = self.job.phase is job.Phase.FINISHED
        before, generation = digest(self.job), self.job.generation
        actions = self.job.handle(event, now=self.now)
        if known:
            assert digest(self.job) == before, "a beat changes nothing that a journal would have to know"
        elif actions or not isinstance(event, job.TimePassed):
            self.journal.append((self.now, event))
        assert self.job.generation >= generation, "generations only grow"
        assert not (was_over and self.job.phase is not job.Phase.FINISHED), "the end is the end"
        for action in actions:
            self.check(action)
        self.check_deadline(event)

    def check(self, action: job.Action) -> None:
        match action:
            case job.Tale(record=WorldFormed() as formed):
                REACHED["world"] += 1
                assert formed.generation == self.job.generation
                phases = {member.status.phase for member in self.job.members.values()}
                assert phases == {NodePhase.READY}, "no world is formed while a worker of an old one may live"
                size = len(formed.placements)
                assert self.rules.min_nodes <= size <= self.rules.max_nodes
                assert [placement.first_rank for placement in formed.placements] == list(range(0, 2 * size, 2))
            case job.Tale(record=IncidentOpened() as opened):
                REACHED[opened.strategy] += 1
                REACHED["unseated"] += "stopped its workers" in opened.symptom
                assert opened.strategy in self.rules.strategies
                assert opened.reason
            case job.Tell(node=node, nonce=nonce, order=order):
                member = self.job.members.get(node)
                assert member is None or member.nonce == nonce, "another incarnation is told nothing"
                if isinstance(order, Run):
                    assert member is not None
                    assert order.world is self.job.world
                    assert member.status.generation < order.world.generation
                if isinstance(order, Finish):
                    assert order.outcome.reason
                if (peer := self.peers.get(node)) is not None and peer.nonce == nonce:
                    peer.order = order
            case _:
                pass

    def check_deadline(self, event: job.Event) -> None:
        deadline = self.job.next_deadline()
        if self.job.phase is job.Phase.FINISHED:
            assert deadline is None
            assert self.job.outcome is not None
            assert self.job.outcome.reason
            return
        assert self.job.outcome is None
        if isinstance(event, job.TimePassed):
            assert deadline is None or deadline > self.now, "time that has passed does not come again"

    def do(self, word: str, node: str, amount: float) -> None:
        peer = self.peers.get(node)
        match word:
            case "join" if peer is None:
                self.num_peers += 1
                self.peers[node] = Peer(node, self.num_peers, attached=self.attached)
                self.register(self.peers[node])
            case "register" if peer is not None:
                self.register(peer)
            case "die" if peer is not None:
                del self.peers[node]
                if amount < 0.5:
                    self.step(job.AgentDied(node, peer.nonce, "dead"))
            case "obey" if peer is not None:
                self.step(peer.obey())
            case "all obey":
                for each in list(self.peers.values()):
                    self.step(each.obey())
            case "drain" | "succeed" | "leave" if peer is not None:
                phases = {"drain": NodePhase.DRAINING, "succeed": NodePhase.SUCCEEDED, "leave": NodePhase.LEAVING}
                self.step(peer.change(phases[word]))
            case "break" if peer is not None:
                self.step(peer.break_down(amount))
            case "fence" if peer is not None:
                self.step(peer.fence(amount))
            case "commit" if peer is not None:
                self.step(peer.commit())
            case "park" if peer is not None:
                self.step(peer.park())
            case "left" if peer is not None:
                del self.peers[node]
                self.step(peer.say(NodeStatus(NodePhase.LEFT, peer.status.generation, reason="gone")))
            case "echo" if peer is not None and peer.past:
                self.step(peer.past[int(amount * len(peer.past))])
            case "wait":
                self.wait(amount * 10)
            case "deadline":
                for_s = max(0.0, (self.job.next_deadline() or self.now) - self.now)
                # Far ones are for patient histories only: they end the job.
                self.wait(for_s if for_s < 20.0 or amount < 0.1 else 1.0, are_heard=amount > 0.3)
            case "restart":
                self.restart()
            case "end" if amount < 0.1:
                self.step(job.EndRequested(1, "asked to"))
            case _:
                pass

    def register(self, peer: Peer) -> None:
        limits = (self.rules.min_nodes, self.rules.max_nodes)
        event = registration(peer.node, nonce=peer.nonce, status=peer.status)
        self.step(replace(event, nodes=limits))

    def wait(self, for_s: float, *, are_heard: bool = False) -> None:
        self.now += for_s
        for peer in list(self.peers.values()) if are_heard else ():
            self.step(peer.say(peer.status))
        self.step(self.job.passing(now=self.now))

    def calm_down(self, *, hangs: bool = False) -> None:
        """Everybody obeys, and nothing new happens: the job ends, or goes on with nothing left to repair."""
        for _ in range(CALM_TURNS):
            for peer in list(self.peers.values()):
                if peer.node not in self.job.members and self.job.phase is not job.Phase.FINISHED:
                    # It was given up, so its workers have been killed.
                    peer.status, peer.order = NodeStatus(NodePhase.READY, peer.status.generation), None
                    self.register(peer)
                self.step(peer.calm_down(hangs=hangs))
                if peer.status.phase is NodePhase.LEFT:
                    del self.peers[peer.node]
            if self.is_settled():
                REACHED[f"calm: {self.job.phase}"] += 1
                return
            deadline = self.job.next_deadline()
            assert deadline is not None, "somebody waits for something that cannot happen"
            self.wait(min(max(0.0, deadline - self.now), self.rules.lease_s / 2))
        raise AssertionError(f"still {self.job.phase}, {self.job.incident or self.job.waiting_reason}")

    def is_settled(self) -> bool:
        it = self.job
        is_whole = it.phase is job.Phase.RUNNING and it.incident is None and not it.vacant and it.after_dump is None
        return is_whole or it.phase is job.Phase.FINISHED

    def restart(self) -> None:
        """A master that replays the journal is the master that wrote it."""
        again = job.Job(self.rules, now=0.0)
        for then, event in self.journal:
            again.handle(event, now=then)
        assert digest(again) == digest(self.job)
        self.job = again
        REACHED["restart"] += 1
        self.step(job.MasterStarted())


def begin(the_rules: JobRules, *, attached: bool) -> History:
    """A job with just enough nodes."""
    history = History(the_rules, attached=attached)
    for node in NODES[: the_rules.min_nodes]:
        history.do("join", node, 0.0)
    return history


def digest(it: job.Job) -> object:
    members = {
        name: (member.registered, member.status, member.previous_rank, member.ready_at)
        for name, member in it.members.items()
    }
    waits = it.incident, it.vacant, it.vacant_until, it.repair_until, it.dump_until, it.waiting_reason
    return it.phase, it.generation, it.restart_count, it.world, it.outcome, waits, members


def steps(*words: str, least: int, most: int) -> st.SearchStrategy[list[tuple[str, str, float]]]:
    amounts = st.sampled_from([number / 100 for number in range(100)])
    return st.lists(st.tuples(st.sampled_from(words), st.sampled_from(NODES), amounts), min_size=least, max_size=most)


def the_rules(limits: list[int], *, max_restarts: int, named: frozenset[Strategy]) -> JobRules:
    low, high = limits
    return rules(
        min_nodes=low,
        max_nodes=high,
        max_restarts=max_restarts,
        strategies=tuple(strategy for strategy in Strategy if strategy in named or strategy is Strategy.EXIT),
        lease_s=12.0,
        stop_timeout_s=5.0,
        repair_timeout_s=60.0,
    )


RARE = ("wait", "register", "die", "drain", "succeed", "leave", "left", "echo", "restart", "end")
FINER = [strategy for strategy in Strategy if strategy is not Strategy.EXIT]
SUBSETS = [frozenset(named) for size in range(len(FINER) + 1) for named in combinations(FINER, size)]
LIMITS = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted)
RESTARTS = st.sampled_from([0, 2, 50, 50])


@settings(max_examples=300)
@given(
    history=steps(
        *["join"] * 4, *["all obey"] * 6, *["obey"] * 3, *["deadline"] * 3, "break", *RARE, least=40, most=80
    ),
    limits=LIMITS,
    max_restarts=RESTARTS,
    attached=st.booleans(),
)
def test_a_job_holds_its_word_through_every_history(history, limits, max_restarts, attached):
    setup = the_rules(limits, max_restarts=max_restarts, named=frozenset(Strategy))
    it = begin(setup, attached=attached)
    for word, node, amount in history:
        it.do(word, node, amount)
        REACHED[it.job.phase] += 1
        if it.job.phase is job.Phase.FINISHED and amount < 0.3:
            it = begin(setup, attached=attached)
    it.calm_down()


@settings(max_examples=400)
@given(
    history=steps(
        *["break", "all obey"] * 4,
        *["fence", "commit", "deadline"] * 2,
        *("join", "park", *RARE),
        least=5,
        most=40,
    ),
    limits=LIMITS,
    max_restarts=RESTARTS,
    named=st.sampled_from(SUBSETS),
    attached=st.sampled_from([True, True, True, False]),
    hangs=st.booleans(),
)
def test_every_fault_comes_to_an_end_whatever_may_be_done_about_it(
    history, limits, max_restarts, named, attached, hangs
):
    it = begin(the_rules(limits, max_restarts=max_restarts, named=named), attached=attached)
    most = limits[1]
    for word, node in [*(("join", node) for node in NODES[:most]), ("wait", ""), ("all obey", "")]:
        it.do(word, node, 0.3)
    for word, node, amount in history:
        # Seldom one that has yet to come: nothing breaks there.
        it.do(word, node if amount < 0.2 else NODES[NODES.index(node) % most], amount)
    it.calm_down(hangs=hangs)


def test_the_histories_above_went_somewhere():
    """Green proves little: count where they went."""
    assert REACHED["world"] > 600, REACHED
    assert REACHED["restart"] > 200
    assert all(REACHED[phase] > 200 for phase in job.Phase), REACHED
    assert all(REACHED[strategy] > 25 for strategy in FINER), REACHED
    assert REACHED["unseated"] > 25, REACHED
    assert all(REACHED[f"calm: {phase}"] > 50 for phase in (job.Phase.RUNNING, job.Phase.FINISHED)), REACHED
