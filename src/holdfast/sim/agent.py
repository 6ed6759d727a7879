"""One node: the real `WorkerGroup` over simulated processes and a simulated link."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import workers as core
from holdfast.core.ids import Address, NodePhase, Run, Stop
from holdfast.core.job import NodeRegistered
from holdfast.sim.crew import Crew
from holdfast.sim.link import Door, Link
from holdfast.sim.stage import Stage
from holdfast.sim.timeline import Alarm


class Agent:
    """One incarnation of the agent of a machine."""

    def __init__(
        self,
        stage: Stage,
        door: Door,
        *,
        machine: str,
        node: str,
        nonce: str,
        revive_master: Callable[[], None] | None,
        leave: Callable[[Agent], None],
    ) -> None:
        setup, now = stage.setup, stage.timeline.now
        self.machine = machine
        self.node = node
        self.nonce = nonce
        self.alive = True
        self.hosts_master = revive_master is not None
        self.exit_reason = ""
        self._stage = stage
        self._revive_master = revive_master
        self._leave = leave
        spec = core.GroupSpec(node, setup.rules, setup.drain_s, setup.shutdown_s, self.hosts_master)
        self._group = core.WorkerGroup(spec, now=now)
        self.crew = Crew(stage, node, self.handle)
        self.link = Link(
            stage, door, machine=machine, registered=self._registered, tell=self.handle, give_up=self._give_up
        )
        self._alarm = Alarm(stage.timeline, self._ring)
        self._ran = 0
        self._told_to_stop = 0

    def start(self) -> None:
        self.link.report(core.Report(0, self._group.status()))
        self.link.dial()
        self._alarm.set(self._group.next_deadline())

    def handle(self, event: core.Event) -> None:
        if not self.alive:
            return
        group, now = self._group, self._stage.timeline.now
        before = group.phase
        actions = group.handle(event, now=now)
        self._watch(event, actions, before)
        ends = any(isinstance(action, core.Exit) for action in actions)
        for action in actions:
            # The last report before an exit may or may not get out.
            if not (ends and isinstance(action, core.Report) and self._stage.rng.random() < 0.5):
                self._perform(action)
        self._alarm.set(group.next_deadline())

    def crash(self) -> None:
        self.alive = False
        self.link.closed = True
        self.crew.die()

    # --- effects ----------------------------------------------------------------------------------------------

    def _perform(self, action: core.Action) -> None:
        match action:
            case core.Report():
                self.link.report(action)
            case core.Launch():
                self._check_launch(action)
                self.crew.launch(action)
            case core.Forward():
                self.crew.forward(action.signal)
            case core.Sweep():
                self.crew.sweep()
            case core.ReviveMaster():
                assert self._revive_master is not None, "only a host revives"
                self._stage.trace.reach("master revived by its host")
                self._revive_master()
            case core.Exit():
                self._stage.trace.require(not self.crew.live(), f"{self.node} exits and leaves workers behind")
                self._end(action.reason)

    def _give_up(self, reason: str) -> None:
        self._stage.trace.reach("agent gave up on the master" if "within" in reason else "agent refused for good")
        self._end(reason)

    def _end(self, reason: str) -> None:
        self._stage.trace.require(bool(reason), f"{self.node} exits without a reason")
        self._stage.trace.say(f"{self.node} exits: {reason}")
        self.exit_reason = reason
        self.crash()
        self._leave(self)

    def _ring(self) -> None:
        if not self.alive:
            return
        deadline, now = self._group.next_deadline(), self._stage.timeline.now
        if deadline is not None and now >= deadline:
            self.handle(core.TimePassed())
            after = self._group.next_deadline()
            self._stage.trace.require(after is None or after > now, f"{self.node} stands still in time")
        self._alarm.set(deadline)

    def _registered(self, report: core.Report) -> NodeRegistered:
        setup = self._stage.setup
        return NodeRegistered(
            self.node,
            self.nonce,
            self.machine,
            1,
            setup.num_workers,
            Address(self.machine, 29500),
            None,
            setup.rules.job_id,
            (setup.rules.min_nodes, setup.rules.max_nodes),
            report.status,
        )

    # --- what must hold, and what was reached -----------------------------------------------------------------

    def _check_launch(self, launch: core.Launch) -> None:
        generation = launch.world.generation
        newest = max(self._ran, self._told_to_stop)
        self._stage.trace.require(generation > newest, f"{self.node} runs {generation} after it knew {newest}")
        self._stage.trace.require(not self.crew.live(), f"{self.node} starts workers beside live ones")
        self._ran = generation

    def _watch(self, event: core.Event, actions: list[core.Action], before: NodePhase) -> None:
        trace, group = self._stage.trace, self._group
        phase = group.phase
        match event:
            case core.OrderReceived(order=Run(world=world)):
                if world.generation <= max(self._ran, self._told_to_stop):
                    trace.reach("stale run refused")
                elif not actions:
                    trace.reach("run refused by a node that is stopping or cut off")
            case core.OrderReceived(order=Stop(generation=generation)):
                if generation > max(self._ran, self._told_to_stop):
                    trace.reach("stopped before it ran")
                self._told_to_stop = max(self._told_to_stop, generation)
            case core.TimePassed():
                if any(isinstance(action, core.Sweep) for action in actions):
                    fenced = group.status().reason.startswith("cut off")
                    trace.reach("agent fenced itself" if fenced else "workers outlived their grace")
            case core.LaunchFailed():
                trace.reach("launch failed")
            case _:
                pass
        if phase is not before:
            trace.say(f"{self.node} {phase} {group.generation} ({type(event).__name__})")
            if phase is NodePhase.LEAVING:
                trace.reach("node left")
