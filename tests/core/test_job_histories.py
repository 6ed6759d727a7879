"""Whatever happens to a job, in whatever order: some things hold after every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from driving import registration, rules
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import job
from holdfast.core.ids import Finish, NodePhase, NodeStatus, Order, Run, Stop
from holdfast.core.story import WorldFormed
from holdfast.spec.job import JobRules

NODES = "abcdef"
REACHED: Counter[str] = Counter()


class Peer:
    """A node that does what it was last told to, when it is asked what it does."""

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.nonce = f"{node}{number}"
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
            case Run(world=world) if status.phase is NodePhase.READY and world.generation > status.generation:
                status = NodeStatus(NodePhase.RUNNING, world.generation, pids=(1, 2))
            case Stop(generation=generation) if status.phase is not NodePhase.LEAVING:
                status = NodeStatus(NodePhase.READY, max(generation, status.generation))
        return self.say(status)

    def change(self, phase: NodePhase) -> job.StatusReported:
        """A turn that nobody ordered, if this node could take it."""
        if self.status.phase is not NodePhase.RUNNING:
            return self.say(self.status)
        return self.say(replace(self.status, phase=phase, pids=(), reason="so it is"))


class History:
    """A job, its peers, its clock and its journal."""

    def __init__(self, the_rules: JobRules) -> None:
        self.rules = the_rules
        self.now = 0.0
        self.job = job.Job(the_rules, now=0.0)
        self.peers: dict[str, Peer] = {}
        self.journal: list[tuple[float, job.Event]] = []
        self.num_peers = 0
        self.published = 0

    def step(self, event: job.Event) -> None:
        known = isinstance(event, job.StatusReported) and self.job.is_old_news(event)
        was_over = self.job.phase is job.Phase.FINISHED
        before = digest(self.job)
        actions = self.job.handle(event, now=self.now)
        if known:
            assert digest(self.job) == before, "a beat changes nothing that a journal would have to know"
        elif actions or not isinstance(event, job.TimePassed):
            self.journal.append((self.now, event))
        assert not (was_over and self.job.phase is not job.Phase.FINISHED), "the end is the end"
        for action in actions:
            self.check(action)
        self.check_deadline(event)

    def check(self, action: job.Action) -> None:
        match action:
            case job.Tale(record=WorldFormed() as formed):
                REACHED["world"] += 1
                assert formed.generation == self.published + 1, "generations only grow"
                self.published = formed.generation
                phases = {member.status.phase for member in self.job.members.values()}
                assert phases == {NodePhase.READY}, "no world is formed while a worker of an old one may live"
                size = len(formed.placements)
                assert self.rules.min_nodes <= size <= self.rules.max_nodes
                assert [placement.first_rank for placement in formed.placements] == list(range(0, 2 * size, 2))
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
                self.peers[node] = Peer(node, self.num_peers)
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
                self.wait(for_s if for_s < 20.0 or amount < 0.1 else 1.0)
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

    def wait(self, for_s: float) -> None:
        self.now += for_s
        self.step(job.TimePassed(self.job.silent(now=self.now)))

    def restart(self) -> None:
        """A master that replays the journal is the master that wrote it."""
        again = job.Job(self.rules, now=0.0)
        for then, event in self.journal:
            again.handle(event, now=then)
        assert digest(again) == digest(self.job)
        self.job = again
        REACHED["restart"] += 1
        self.step(job.MasterStarted())


def begin(the_rules: JobRules) -> History:
    """A job with just enough nodes."""
    history = History(the_rules)
    for node in NODES[: the_rules.min_nodes]:
        history.do("join", node, 0.0)
    return history


def digest(it: job.Job) -> object:
    members = {
        name: (member.registered, member.status, member.previous_rank, member.ready_at)
        for name, member in it.members.items()
    }
    return it.phase, it.generation, it.restart_count, it.world, it.outcome, it.waiting_reason, members


WORDS = st.sampled_from(
    ["join"] * 4
    + ["all obey"] * 6
    + ["obey"] * 3
    + ["deadline"] * 3
    + ["wait", "register", "die", "drain", "succeed", "leave", "left", "echo", "restart", "end"]
)
STEPS = st.lists(
    st.tuples(WORDS, st.sampled_from(NODES), st.floats(0.0, 1.0, exclude_max=True)), min_size=40, max_size=80
)


@settings(max_examples=300)
@given(
    steps=STEPS,
    limits=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
    max_restarts=st.sampled_from([0, 2, 50, 50]),
)
def test_a_job_holds_its_word_through_every_history(steps, limits, max_restarts):
    low, high = limits
    the_rules = rules(min_nodes=low, max_nodes=high, max_restarts=max_restarts, lease_s=12.0, stop_timeout_s=5.0)
    history = begin(the_rules)
    for word, node, amount in steps:
        history.do(word, node, amount)
        REACHED[history.job.phase] += 1
        if history.job.phase is job.Phase.FINISHED and amount < 0.3:
            history = begin(the_rules)


def test_the_histories_above_went_somewhere():
    """Green proves little: count where they went."""
    assert REACHED["world"] > 600, REACHED
    assert REACHED["restart"] > 200
    assert all(REACHED[phase] > 200 for phase in job.Phase), REACHED
