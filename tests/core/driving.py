"""Drive the cores by hand: a few words per event, and questions about what was answered."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.core import job, workers
from holdfast.core.ids import Address, NodePhase, NodeStatus, Order, Placement, Run, WorkerFailure, World
from holdfast.core.story import Record
from holdfast.spec.job import JobRules

RULES = JobRules(
    job_id="job",
    min_nodes=2,
    max_nodes=3,
    max_restarts=2,
    restart_window_s=1000.0,
    join_timeout_s=100.0,
    last_call_s=2.0,
    beat_s=1.0,
    lease_s=10.0,
    stop_timeout_s=30.0,
)

READY = NodeStatus(NodePhase.READY, 0)
PIDS = (10, 11)


def rules(**changes: object) -> JobRules:
    return replace(RULES, **changes)


def registration(
    node: str, *, nonce: str = "", status: NodeStatus = READY, wanted_rank: int | None = None, num_workers: int = 2
) -> job.NodeRegistered:
    nodes = (RULES.min_nodes, RULES.max_nodes)
    store = Address(f"host-{node}", 29500)
    return job.NodeRegistered(
        node, nonce or node, f"host-{node}", 7, num_workers, store, wanted_rank, "job", nodes, status
    )


def failure(rank: int, *, node: str = "a", code: int | None = 1, error: str = "", **more: object) -> WorkerFailure:
    return WorkerFailure(rank, rank % 2, node, 100 + rank, exit_code=code, error=error, **more)


class Master:
    """A job and its clock."""

    def __init__(self, the_rules: JobRules = RULES, *, sole_nonce: str | None = None) -> None:
        self.job = job.Job(the_rules, now=0.0, sole_nonce=sole_nonce)
        self.now = 0.0
        self._seqs: dict[str, int] = {}

    def handle(self, event: job.Event) -> list[job.Action]:
        return self.job.handle(event, now=self.now)

    def join(self, *nodes: str, **options: object) -> list[job.Action]:
        """Nodes register; the actions of all of them."""
        limits = (self.job.rules.min_nodes, self.job.rules.max_nodes)
        events = [replace(registration(node, **options), nodes=limits) for node in nodes]
        return [action for event in events for action in self.handle(event)]

    def report(self, node: str, phase: NodePhase, generation: int, **status: object) -> list[job.Action]:
        """The node as the master knows it tells its next status; a script with the SDK saves checkpoints."""
        return self._tell(node, NodeStatus(phase, generation, **{"saves": status.get("attached", False), **status}))

    def _tell(self, node: str, status: NodeStatus) -> list[job.Action]:
        self._seqs[node] = self._seqs.get(node, 0) + 1
        return self.handle(job.StatusReported(node, self.nonce(node), self._seqs[node], status))

    def beat(self, *nodes: str) -> list[job.Action]:
        """Nodes repeat the status that the master knows."""
        statuses = {node: self.job.members[node].status for node in nodes}
        return [action for node, status in statuses.items() for action in self._tell(node, status)]

    def wait(self, until: float) -> list[job.Action]:
        """Let time pass in one go."""
        self.now = until
        return self.handle(self.job.passing(now=until))

    def run(self, *nodes: str) -> list[job.Action]:
        """Nodes start the workers they were told to."""
        world = self.job.world
        assert world is not None, "somebody was told to run"
        actions: list[job.Action] = []
        for node in nodes:
            placement = world.placement_of(node)
            pids = tuple(range(placement.num_workers)) if placement else ()
            actions += self.report(node, NodePhase.RUNNING, world.generation, pids=pids)
        return actions

    def form(self, *nodes: str) -> None:
        """The first world, with every node running."""
        self.join(*nodes)
        if self.job.phase is job.Phase.GATHERING:
            self.wait(self.now + self.job.rules.last_call_s)
        self.run(*nodes)
        assert self.job.phase is job.Phase.RUNNING, "a world was formed"

    def nonce(self, node: str) -> str:
        member = self.job.members.get(node)
        return member.nonce if member else node


def tales(actions: Iterable[job.Action], kind: type | None = None) -> list[Record]:
    records = [action.record for action in actions if isinstance(action, job.Tale)]
    return [record for record in records if kind is None or isinstance(record, kind)]


def orders(actions: Iterable[job.Action]) -> dict[str, Order]:
    """Who was told what; the last word counts."""
    return {action.node: action.order for action in actions if isinstance(action, job.Tell)}


def refusals(actions: Iterable[job.Action]) -> list[job.Refuse]:
    return [action for action in actions if isinstance(action, job.Refuse)]


def ranks(world: World | None) -> dict[str, int]:
    """Group rank by node."""
    assert world is not None, "there is a world"
    return {placement.node: placement.group_rank for placement in world.placements}


def crash(rank: int, *, step: int, number: int = signal.SIGSEGV, error: str = "Fatal Python error") -> WorkerFailure:
    return failure(rank, code=None, signal=number, error=error, step=step)


def die(master: Master, node: str) -> list[job.Action]:
    return master.handle(job.AgentDied(node, master.nonce(node), "its agent is dead"))


def placed(actions: list[job.Action], node: str) -> dict[str, int]:
    """Where each node's ranks begin in the world that `node` is told to run."""
    order = orders(actions)[node]
    assert isinstance(order, Run)
    assert order.world.repairs
    return {placement.node: placement.first_rank for placement in order.world.placements}


def train(master: Master, *nodes: str, attached: bool = True) -> list[job.Action]:
    """These nodes have committed a step in the current world."""
    generation = master.job.generation
    done = [
        master.report(node, NodePhase.RUNNING, generation, pids=PIDS, attached=attached, committed=generation)
        for node in nodes
    ]
    return [action for actions in done for action in actions]


def park(master: Master, node: str, count: int = len(PIDS)) -> list[job.Action]:
    return master.report(node, NodePhase.READY, 0, parked=count)


def world(generation: int, *, nodes: Sequence[str] = ("a", "b"), num_workers: int = 2) -> World:
    placements = tuple(Placement(node, rank, rank * num_workers, num_workers) for rank, node in enumerate(nodes))
    return World(generation, generation - 1, placements, Address("host-a", 29500))


class Node:
    """The worker group of node `a` and its clock."""

    def __init__(
        self,
        *,
        hosts_master: bool = False,
        drain_s: float = 5.0,
        shutdown_s: float = 20.0,
        draw: Callable[[], float] = lambda: 0.0,
        **changes: object,
    ) -> None:
        spec = workers.GroupSpec("a", rules(**changes), drain_s, shutdown_s, hosts_master, draw)
        self.group = workers.WorkerGroup(spec, now=0.0)
        self.now = 0.0

    def handle(self, event: workers.Event) -> list[workers.Action]:
        return self.group.handle(event, now=self.now)

    def order(self, order: Order) -> list[workers.Action]:
        return self.handle(workers.OrderReceived(order))

    def run(self, generation: int = 1) -> list[workers.Action]:
        """Run a generation until its two workers are alive."""
        self.handle(workers.Heard(self.now))
        self.order(Run(world(generation)))
        return self.started()

    def started(self) -> list[workers.Action]:
        """Both workers are alive."""
        return self.handle(workers.WorkerStarted(0, 11)) + self.handle(workers.WorkerStarted(1, 12))

    def exit(self, local_rank: int, code: int | None = 0, **more: object) -> list[workers.Action]:
        pid = 11 + local_rank
        event = workers.WorkerExited(local_rank, pid, code, more.pop("signal", None), **more)
        return self.handle(event)

    def wait(self, until: float) -> list[workers.Action]:
        self.now = until
        return self.handle(workers.TimePassed())

    def status(self) -> NodeStatus:
        return self.group.status()


def reports(actions: Iterable[workers.Action]) -> list[NodeStatus]:
    return [action.status for action in actions if isinstance(action, workers.Report)]


def without_reports(actions: Iterable[workers.Action]) -> list[workers.Action]:
    return [action for action in actions if not isinstance(action, workers.Report)]
