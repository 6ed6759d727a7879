"""What goes wrong: drawn from the seed, spread over the first part of the simulation, followed by calm."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core import workers
from holdfast.core.job import EndRequested
from holdfast.sim.agent import Agent
from holdfast.sim.network import Block, Way

if TYPE_CHECKING:
    from holdfast.sim.cluster import Cluster


class Faults:
    """Draws faults and lets them happen."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stage = cluster.stage
        self._rng = cluster.stage.rng
        self._network = cluster.stage.network
        self._menu: dict[Callable[[], None], int] = {
            self._crash_agent: 8,
            self._fail_worker: 8,
            self._crash_master: 6,
            self._crash_master_half_way: 3,
            self._stall_master: 3,
            self._partition: 6,
            self._swizzle_clog: 5,
            self._answer_late: 3,
            self._break_links: 4,
            self._signal_agent: 4,
            self._kill_store: 2,
            self._fail_launch: 2,
            self._make_sticky: 3,
            self._add_machine: 3,
            self._request_end: 1,
            self._pile_up: 3,
        }

    def start(self) -> None:
        setup, timeline = self._stage.setup, self._stage.timeline
        for _ in range(setup.num_faults):
            timeline.at(self._rng.uniform(0.0, setup.faults_s), self._strike)
        timeline.at(setup.faults_s, self._calm)

    def _strike(self) -> None:
        if not self._cluster.master.gone:
            self._rng.choices(list(self._menu), weights=list(self._menu.values()))[0]()

    def _calm(self) -> None:
        self._stage.trace.say("calm")
        self._network.calm()

    # --- nodes and workers ------------------------------------------------------------------------------------

    def _crash_agent(self) -> None:
        if (agent := self._victim()) is not None:
            self._cluster.crash(agent)
            if self._rng.random() < 0.8:
                back_s = self._rng.uniform(0.1, 2 * self._stage.setup.rules.lease_s)
                self._stage.timeline.after(back_s, lambda: self._cluster.add(agent.machine))

    def _fail_worker(self) -> None:
        crews = [agent.crew for agent in self._cluster.living() if agent.crew.live()]
        if crews:
            crew = self._rng.choice(crews)
            process = self._rng.choice(crew.live())
            self._stage.trace.say(f"rank {process.rank} of {process.generation} fails on {process.node}")
            crew.fail(process)

    def _kill_store(self) -> None:
        agents = [agent for agent in self._cluster.living() if agent.crew.live()]
        if agents:
            agent = self._rng.choice(agents)
            generation = agent.crew.live()[0].generation
            self._stage.trace.say(f"store of {generation} dies on {agent.node}")
            agent.handle(workers.StoreDied(generation))

    def _fail_launch(self) -> None:
        if (agent := self._victim()) is not None:
            agent.crew.fail_next_launch = True

    def _make_sticky(self) -> None:
        """The next sweep somewhere ends late, perhaps too late for the master; and something must be swept."""
        if (agent := self._victim()) is not None:
            agent.crew.sticky_sweep_s = self._rng.uniform(0.2, 1.5) * self._stage.setup.rules.stop_timeout_s
            self._fail_worker()

    def _add_machine(self) -> None:
        number = max((int(machine[1:]) for machine in self._cluster.agents), default=0) + 1
        self._cluster.add(f"n{max(number, self._stage.setup.num_nodes)}")

    # --- people -----------------------------------------------------------------------------------------------

    def _signal_agent(self) -> None:
        ends_job = self._rng.random() < 0.15
        agent = self._rng.choice(self._cluster.living() or [None]) if ends_job else self._victim()
        if agent is None:
            return
        number = self._rng.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGTERM, signal.SIGHUP))
        self._signal(agent, signal.SIGINT if ends_job else number)
        if self._rng.random() < 0.3:
            again_s = self._rng.uniform(0.0, 2.0)
            self._stage.timeline.after(again_s, lambda: self._signal(agent, number))

    def _signal(self, agent: Agent, number: signal.Signals) -> None:
        if agent.alive:
            self._stage.trace.say(f"{agent.node} gets {number.name}")
            self._stage.trace.reach(f"signal {number.name}")
            agent.handle(workers.SignalReceived(number))

    def _request_end(self) -> None:
        self._stage.trace.say("somebody wants the job to end")
        self._cluster.master.put(EndRequested(143, "asked to end"))

    # --- the master -------------------------------------------------------------------------------------------

    def _crash_master(self) -> None:
        long = self._rng.random() < 0.2
        lease_s = self._stage.setup.rules.lease_s
        self._cluster.master.crash(
            down_s=self._rng.uniform(lease_s, 2 * lease_s) if long else self._rng.uniform(0.1, 2)
        )

    def _crash_master_half_way(self) -> None:
        self._cluster.master.dies_half_way = True

    def _stall_master(self) -> None:
        leases = self._rng.choice((0.5, 1.5, 4.0))
        self._stage.trace.say(f"master stalls for {leases:g} leases")
        self._cluster.master.stall(leases * self._stage.setup.rules.lease_s)

    # --- the network ------------------------------------------------------------------------------------------

    def _break_links(self) -> None:
        for machine in self._some_machines():
            self._break(machine)

    def _partition(self) -> None:
        """Cut a part of the machines off, one way or both, for less or more than a lease."""
        machines = self._some_machines()
        ways = self._rng.choice(((Way.UP, Way.DOWN), (Way.UP, Way.DOWN), (Way.UP,), (Way.DOWN,)))
        block = self._rng.choice((Block.CUT, Block.CLOGGED))
        for_s = self._rng.uniform(0.2, 2.5) * self._stage.setup.rules.lease_s
        self._stage.trace.say(f"{block} {'+'.join(ways)} for {for_s:.2f} s: {' '.join(machines)}")
        for machine in machines:
            for way in ways:
                self._network.block(machine, way, block)
                self._stage.timeline.after(for_s, partial(self._network.free, machine, way))

    def _swizzle_clog(self) -> None:
        """Clog a part of the machines one by one, and free them in another order."""
        machines = self._some_machines()
        rng, timeline = self._rng, self._stage.timeline
        self._stage.trace.say(f"swizzle: {' '.join(machines)}")
        clogged_s = rng.uniform(0.5, 2.0) * self._stage.setup.rules.lease_s
        for machine in machines:
            # A link that is dialled again meanwhile hears of it late.
            timeline.after(rng.uniform(0.0, 2 * clogged_s), partial(self._break, machine))
            for way in Way:
                timeline.after(rng.uniform(0.0, clogged_s), partial(self._network.block, machine, way, Block.CLOGGED))
                timeline.after(clogged_s + rng.uniform(0.0, clogged_s), partial(self._network.free, machine, way))

    def _answer_late(self) -> None:
        """A question gets through, its answer comes late, and nothing more is heard from there."""
        machines = self._some_machines()
        rng, timeline, lease_s = self._rng, self._stage.timeline, self._stage.setup.rules.lease_s
        self._stage.trace.say(f"late answers: {' '.join(machines)}")
        for machine in machines:
            self._network.block(machine, Way.DOWN, Block.CLOGGED)
            self._break(machine)
            timeline.after(0.1, partial(self._network.block, machine, Way.UP, Block.CLOGGED))
            timeline.after(rng.uniform(0.1, 0.9) * lease_s, partial(self._network.free, machine, Way.DOWN))
            timeline.after(rng.uniform(1.5, 2.5) * lease_s, partial(self._network.free, machine, Way.UP))

    # --- several at once --------------------------------------------------------------------------------------

    def _pile_up(self) -> None:
        """A worker fails, and while its generation is being stopped something else happens."""
        self._fail_worker()
        for next_one in (self._request_end, self._signal_agent, self._crash_agent, self._crash_master):
            if self._rng.random() < 0.25:
                self._stage.timeline.after(self._rng.uniform(0.01, 0.5), next_one)

    def _break(self, machine: str) -> None:
        link = self._cluster.agents[machine].link
        link.lose(link.connection)

    def _victim(self) -> Agent | None:
        """An agent that may be lost: with its host the master goes too, and then there is nothing to see."""
        agents = [agent for agent in self._cluster.living() if not agent.hosts_master]
        return self._rng.choice(agents) if agents else None

    def _some_machines(self) -> list[str]:
        machines = list(self._cluster.agents)
        return self._rng.sample(machines, self._rng.randint(1, max(1, len(machines) // 2))) if machines else []
