"""Whatever happens to a node, in whatever order the shell may tell it: some things hold after every step."""

from __future__ import annotations

import signal
from collections import Counter

from driving import RULES, world
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import workers as core
from holdfast.core.ids import Finish, NodePhase, Outcome, Run, Stop

REACHED: Counter[str] = Counter()
IDLE = (NodePhase.READY, NodePhase.SUCCEEDED, NodePhase.LEFT)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class History:
    """A worker group with made-up processes, and what its shell knows."""

    def __init__(self, *, hosts_master: bool) -> None:
        spec = core.GroupSpec("a", RULES, 3.0, 6.0, hosts_master)
        self.hosts_master = hosts_master
        self.is_replaceable = not hosts_master
        self.group = core.WorkerGroup(spec, now=0.0)
        self.now = 0.0
        self.heard_at = 0.0
        self.alive: set[int] = set()
        self.launching: core.Launch | None = None
        self.sweeping = False
        self.over = False
        self.known = 0
        self.seq = 0
        self.generation = 0

    def step(self, event: core.Event) -> None:
        if self.over:
            return
        for action in self.group.handle(event, now=self.now):
            self.perform(action)
        status, deadline = self.group.status(), self.group.next_deadline()
        if status.phase in (NodePhase.READY, NodePhase.SUCCEEDED):
            assert status.generation >= self.generation, "generations only grow"
            self.generation = status.generation
        assert not (status.phase in IDLE and self.alive), "no worker is alive once the status says so"
        if isinstance(event, core.TimePassed):
            assert deadline is not None
            assert deadline > self.now, "time that has passed does not come again"
        if isinstance(event, core.TimePassed) and self.is_replaceable and self.alive:
            fenced = self.now >= self.heard_at + RULES.fence_s
            assert self.sweeping or not fenced, "whoever is not heard kills its workers"

    def perform(self, action: core.Action) -> None:
        match action:
            case core.Launch():
                assert not self.alive
                assert not self.sweeping
                assert action.world.generation > self.known, "nothing old is started"
                self.known = action.world.generation
                self.launching = action
                REACHED["launch"] += 1
            case core.Sweep():
                assert not self.sweeping, "one sweep at a time"
                self.sweeping = True
                self.launching = None
            case core.Report():
                assert action.seq > self.seq
                self.seq = action.seq
            case core.Exit():
                assert not self.alive, "nothing is left behind"
                assert action.reason
                self.over = True
                REACHED["exit"] += 1
            case core.ReviveMaster():
                assert self.hosts_master
                REACHED["revive"] += 1
            case core.Forward():
                pass

    def do(self, word: str, amount: float) -> None:
        match word:
            case "run":
                self.step(core.OrderReceived(Run(world(max(1, self.known + int(amount * 4) - 1)))))
            case "stop":
                generation = max(0, self.known + int(amount * 3) - 1)
                self.known = max(self.known, generation)
                self.step(core.OrderReceived(Stop(generation, "told to")))
            case "finish" if amount < 0.1:
                self.step(core.OrderReceived(Finish(Outcome(0, "over"))))
            case "launched" if self.launching is not None:
                placement = self.launching.placement
                self.launching = None
                self.alive = set(range(placement.num_workers))
                for local_rank in range(placement.num_workers):
                    self.step(core.WorkerStarted(local_rank, 11 + local_rank))
            case "attached" if self.alive:
                self.step(core.WorkerAttached(11 + min(self.alive)))
                self.step(core.WorkerAttached(11 + max(self.alive)))
            case "launch failed" if self.launching is not None:
                generation = self.launching.world.generation
                self.launching = None
                self.step(core.LaunchFailed(generation, "no space"))
            case "exit" if self.alive:
                local_rank = min(self.alive)
                self.alive.discard(local_rank)
                code = 0 if amount < 0.7 else 1
                self.step(core.WorkerExited(local_rank, 11 + local_rank, code, None))
            case "swept" if self.sweeping:
                for local_rank in sorted(self.alive):
                    self.alive.discard(local_rank)
                    self.step(core.WorkerExited(local_rank, 11 + local_rank, None, signal.SIGKILL))
                self.sweeping = False
                self.step(core.Swept())
            case "signal" if amount < 0.2:
                self.step(core.SignalReceived(SIGNALS[int(amount * 20)]))
            case "store died":
                self.step(core.StoreDied(self.known - int(amount * 2)))
            case "heard":
                self.heard_at = max(self.heard_at, self.now - amount)
                self.step(core.Heard(self.now - amount))
            case "bequeathed":
                self.is_replaceable = True
                self.step(core.Bequeathed())
            case "master died" if self.hosts_master:
                self.heard_at = self.heard_at if self.is_replaceable else self.now
                self.step(core.MasterDied())
            case "wait" | "stand still":
                self.now += amount * 5 if word == "wait" else 40.0
                self.step(core.TimePassed())
            case "be cut off":
                until = self.now + 40.0
                while not self.over and (deadline := self.group.next_deadline() or until) < until:
                    self.now = max(self.now, deadline)
                    self.step(core.TimePassed())
            case "deadline":
                self.now = max(self.now, self.group.next_deadline() or 0.0)
                self.step(core.TimePassed())
            case _:
                pass


WORDS = st.sampled_from(
    ["run"] * 4
    + ["launched"] * 5
    + ["attached"] * 5
    + ["exit"] * 4
    + ["swept"] * 8
    + ["heard"] * 5
    + ["stop", "wait", "deadline"] * 2
    + ["be cut off", "stand still", "bequeathed", "master died", "finish", "launch failed", "signal", "store died"]
)


@settings(max_examples=400)
@given(
    steps=st.lists(st.tuples(WORDS, st.floats(0.0, 1.0, exclude_max=True)), min_size=40, max_size=100),
    hosts=st.booleans(),
)
def test_a_node_holds_its_word_through_every_history(steps, hosts):
    history = History(hosts_master=hosts)
    for word, amount in steps:
        history.do(word, amount)
        REACHED[history.group.phase] += 1


def test_the_histories_above_went_somewhere():
    """Green proves little: count where they went."""
    assert REACHED["launch"] > 400, REACHED
    assert all(REACHED[path] > 20 for path in ("exit", "revive", *NodePhase)), REACHED
