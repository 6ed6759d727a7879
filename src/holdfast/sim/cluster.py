"""One seeded cluster: machines, their agents and the master, from the first dial to the last exit."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial

from holdfast.core.ids import Outcome
from holdfast.core.job import AgentDied
from holdfast.sim.agent import Agent
from holdfast.sim.faults import Faults
from holdfast.sim.fleet import Fleet
from holdfast.sim.master import LINGER_S, Master
from holdfast.sim.network import Network
from holdfast.sim.setup import Setup, draw_setup
from holdfast.sim.stage import Stage
from holdfast.sim.timeline import Timeline
from holdfast.sim.trace import Trace

SHARED_MACHINES = 4
"""Every so many machines one is the master's own, where the death of an agent can be proved."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one seed did."""

    seed: int
    setup: Setup
    lines: tuple[str, ...]
    reached: Counter[str]
    outcome: Outcome | None
    """None when the node that hosts the master left before the job had ended."""


class Cluster:
    """The machines, and who runs on them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.master = Master(stage)
        self.agents: dict[str, Agent] = {}
        """The newest agent of each machine, dead or alive."""
        self.host_left = ""
        self._num_incarnations = 0

    def start(self) -> None:
        rng, setup = self.stage.rng, self.stage.setup
        self.master.start()
        for number in range(setup.num_nodes):
            late = number > 0 and rng.random() < 0.1
            delay_s = rng.uniform(0.0, setup.faults_s) if late else rng.uniform(0.0, 1.0)
            self.stage.timeline.after(delay_s, partial(self.add, f"n{number}"))

    def add(self, machine: str) -> None:
        """Start an agent on a machine that has none."""
        old = self.agents.get(machine)
        if self.master.gone or (old is not None and old.alive):
            return
        self._num_incarnations += 1
        number = self._num_incarnations
        hosts = self.stage.setup.hosted and machine == "n0"
        agent = Agent(
            self.stage,
            self.master,
            machine=machine,
            node=machine if self.stage.setup.steady_names else f"{machine}.{number}",
            nonce=f"nonce{number}",
            revive_master=(lambda: self.master.crash(down_s=0.5)) if hosts else None,
            leave=self._mourn,
        )
        self.agents[machine] = agent
        self.stage.trace.say(f"{agent.node} starts")
        agent.start()

    def crash(self, agent: Agent) -> None:
        """The agent of a machine dies, and its workers with it."""
        self.stage.trace.say(f"{agent.node} dies")
        agent.crash()
        self._mourn(agent)

    def living(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.alive]

    def is_over(self) -> bool:
        return self.master.gone and not self.living()

    def _mourn(self, agent: Agent) -> None:
        if agent.hosts_master:
            if self.master.job.outcome is None:
                self.host_left = agent.exit_reason
            self.stage.timeline.after(LINGER_S, self.master.end)
        proof = None
        if int(agent.machine[1:]) % SHARED_MACHINES == 0:
            proof = AgentDied(agent.node, agent.nonce, "its agent (pid 1) is dead")
        delay_s = self.stage.rng.uniform(0.001, 0.1)
        self.stage.timeline.after(delay_s, lambda: self.master.hung_up(agent.nonce, proof))


def simulate(seed: int) -> Result:
    """Run one seed to its end; raises AssertionError when anything that must hold does not."""
    rng, timeline = random.Random(seed), Timeline()
    setup, trace = draw_setup(rng), Trace(seed, timeline)
    network = Network(rng, timeline, setup, local="n0" if setup.hosted else None)
    stage = Stage(rng, timeline, trace, setup, network, Fleet(trace))
    trace.say(f"{setup}")
    cluster = Cluster(stage)
    cluster.start()
    faults = Faults(cluster)
    faults.start()
    ends_by = setup.faults_s + patience_s(setup)
    while not cluster.is_over() and timeline.step():
        trace.require(timeline.now < ends_by, f"not over {patience_s(setup):.1f} s after the last fault")
    outcome = cluster.master.job.outcome
    trace.require(outcome is not None or bool(cluster.host_left), "over without an outcome")
    trace.require(not stage.fleet.live(), "over, and workers are alive")
    if outcome is not None:
        trace.reach("job succeeded" if outcome.exit_code == 0 else "job failed")
        if outcome.root_cause is not None:
            trace.reach("root cause named")
    trace.say(f"over after {timeline.num_done} steps: {outcome or cluster.host_left}")
    return Result(seed, setup, tuple(trace.lines), trace.reached, outcome)


def patience_s(setup: Setup) -> float:
    """How long after the last fault everything must be over."""
    rules = setup.rules
    round_s = rules.lease_s + rules.stop_timeout_s + rules.last_call_s + setup.work_s
    return 3 * (round_s + rules.join_timeout_s)
