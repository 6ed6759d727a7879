"""Measure what the loss of a node costs: with a spare, without one, cut off, and when a node comes back.

Nodes are agents on this machine, with one worker each; all processes of a node are killed at once. A node that is cut
off has a network of its own, which needs root: it is silent and lives. A time is from the fault, or from the last step
of the smaller world, to the first step of the new world on every rank. Progress goes to stderr.
"""

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from machines import Machine, joined, obstacle
from node_systems import (
    HOST_LOST,
    MIN_NODES,
    NODE_BACK,
    NODE_CUT_OFF,
    NODE_LOST,
    NODE_PEERS,
    NUM_NODES,
    SPARE,
    Meeting,
    NodeSystem,
    Place,
    Start,
    holdfast,
    torchrun,
)
from peers import default_folder
from peers.environment import NotAvailable
from processes import descendants, end_all_descendants, snapshot, uninterrupted
from program import conduct, say

LOOPBACK = "127.0.0.1"
MACHINE_PORT = 9601
LIMIT_S = 180.0
SETTLE_S = 1.0
NUM_STEPS = 20
"""So many steps are seen before anything is done to a world."""

Steps = dict[int, list[tuple[float, int]]]
"""When each process ended its steps, and in a world of which size."""


class Job:
    """Nodes that meet at one endpoint; each on a machine of its own, or all on this one."""

    def __init__(self, folder: Path, system: NodeSystem, machines: list[Machine] | None = None) -> None:
        self.folder = folder
        self.machines = machines or []
        self._system = system
        self._meeting = Meeting(machines[0].address, MACHINE_PORT, folder) if machines else meeting_here(folder)
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        """By the number of their place."""

    def start_first_node(self) -> None:
        """It serves the job: the others must not come before it."""
        if self._system.helper is not None:
            self._start(self._place(0), self._system.helper(self._meeting))
            await_that(self._is_up, what="answer of the helper")
        self.start_node()
        await_that(self._is_up, what="first node")

    def start_node(self) -> None:
        """At the first place that is free."""
        number = next(number for number in range(NUM_NODES + 1) if number not in self.nodes)
        place = self._place(number)
        self.nodes[number] = self._start(place, self._system.node(self._meeting, place))

    def _place(self, number: int) -> Place:
        if not self.machines:
            return Place(number, LOOPBACK)
        machine = self.machines[number]
        return Place(number, machine.address, tuple(machine.enter))

    def _start(self, place: Place, start: Start) -> subprocess.Popen[bytes]:
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                [*place.enter, *start.command],
                env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | start.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_up(self) -> bool:
        enter = self._place(0).enter
        probe = f"import socket; socket.create_connection(({self._meeting.address!r}, {self._meeting.port}), 1).close()"
        return subprocess.run([*enter, sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0

    def kill_node(self, index: int) -> float:
        """When the last of its processes was killed."""
        node = self.nodes.pop(index)
        for pid in [node.pid, *descendants([node.pid], snapshot())]:
            # It may have ended with those that were killed before it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed_at = monotonic()
        node.wait()
        return killed_at

    def steps(self) -> Steps:
        found: Steps = {}
        for path in self.folder.glob("steps-*"):
            lines = [line.split() for line in path.read_text().splitlines() if line.count(" ") == 2]
            found[int(path.name.removeprefix("steps-"))] = [(float(at), int(size)) for at, _, size in lines]
        return found

    def await_world(self, size: int, *, after: float = 0.0, num_steps: int = 1) -> float:
        """When, after `after`, every rank of a world of this size had made its first step; waits for more steps."""
        deadline = monotonic() + LIMIT_S
        while True:
            firsts = []
            for steps in self.steps().values():
                ends = [at for at, of in steps if of == size and at > after]
                if len(ends) >= num_steps:
                    firsts.append(ends[0])
            if len(firsts) >= size:
                return max(firsts)
            if monotonic() > deadline:
                output = (self.folder / "output").read_text(errors="replace")[-3000:]
                raise TimeoutError(f"no world of {size} within {LIMIT_S:g} s\n{output}")
            sleep(0.005)

    def last_step_of(self, size: int) -> float:
        return max(at for steps in self.steps().values() for at, of in steps if of == size)


def meeting_here(folder: Path) -> Meeting:
    with socket.create_server((LOOPBACK, 0)) as probe:
        return Meeting(LOOPBACK, probe.getsockname()[1], folder)


def form(job: Job) -> None:
    job.start_first_node()
    for _ in range(NUM_NODES - 1):
        job.start_node()
    job.await_world(NUM_NODES, num_steps=NUM_STEPS)


def lose_with_a_spare(job: Job) -> float:
    form(job)
    job.start_node()
    await_that(lambda: len(list(job.folder.glob("steps-*"))) == NUM_NODES + 1, what="spare at its loop")
    sleep(SETTLE_S)
    killed_at = job.kill_node(1)
    return job.await_world(NUM_NODES, after=killed_at) - killed_at


def lose(job: Job) -> float:
    form(job)
    killed_at = job.kill_node(1)
    return job.await_world(NUM_NODES - 1, after=killed_at) - killed_at


def lose_the_first(job: Job) -> float:
    form(job)
    killed_at = job.kill_node(0)
    return job.await_world(NUM_NODES - 1, after=killed_at) - killed_at


def cut_off(job: Job) -> float:
    form(job)
    job.machines[1].cut_off()
    cut_at = monotonic()
    return job.await_world(NUM_NODES - 1, after=cut_at) - cut_at


def grow_back(job: Job) -> float:
    form(job)
    killed_at = job.kill_node(1)
    job.await_world(NUM_NODES - 1, after=killed_at, num_steps=NUM_STEPS)
    job.start_node()
    grown_at = job.await_world(NUM_NODES, after=killed_at)
    return grown_at - job.last_step_of(NUM_NODES - 1)


def await_that(condition: Callable[[], bool], *, what: str) -> None:
    deadline = monotonic() + LIMIT_S
    while not condition():
        if monotonic() > deadline:
            raise TimeoutError(f"no {what} within {LIMIT_S:g} s")
        sleep(0.01)


EXPERIMENTS: dict[str, Callable[[Job], float]] = {
    SPARE: lose_with_a_spare,
    NODE_LOST: lose,
    HOST_LOST: lose_the_first,
    NODE_BACK: grow_back,
    NODE_CUT_OFF: cut_off,
}
Samples = dict[tuple[str, str], list[float | None]]
"""Seconds, or None where it did not go on; by experiment and system."""


def measure(name: str, system: NodeSystem) -> float | None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        try:
            with place_for(name, Path(folder)) as machines:
                (Path(folder) / "job").mkdir()
                return EXPERIMENTS[name](Job(Path(folder) / "job", system, machines))
        except TimeoutError as error:
            say(f"{name}, {system.name}: {error}")
            return None
        finally:
            with uninterrupted():
                end_all_descendants()


@contextlib.contextmanager
def place_for(name: str, folder: Path) -> Iterator[list[Machine] | None]:
    if name != NODE_CUT_OFF:
        yield None
        return
    with joined(NUM_NODES, folder) as machines:
        yield machines


def table(samples: Samples) -> str:
    lines = [f"{NUM_NODES} nodes of one worker, at least {MIN_NODES}: median [least-most], s"]
    for (name, system), values in sorted(samples.items(), key=lambda item: list(EXPERIMENTS).index(item[0][0])):
        known = [value for value in values if value is not None]
        figures = f"{statistics.median(known):8.3f} [{min(known):.3f}-{max(known):.3f}]" if known else "not at all"
        lines.append(f"{name:31} {system:28} {figures}  {len(known)} of {len(values)}")
    return "\n".join(lines)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=EXPERIMENTS, action="append", help="may be repeated")
    parser.add_argument("--torchrun", action="store_true", help="torchrun too, as it is and tuned; minutes a round")
    parser.add_argument(
        "--peers", choices=NODE_PEERS, nargs="*", metavar="NAME", help=f"other systems too: {', '.join(NODE_PEERS)}"
    )
    parser.add_argument(
        "--peers-folder", type=Path, default=default_folder(), metavar="FOLDER", help="of the peers' environments"
    )
    parser.add_argument("--json", action="store_true", help="raw samples to stdout, table to stderr")
    return parser.parse_args()


def systems_of(*, with_torchrun: bool, peers: Sequence[str], folder: Path) -> list[NodeSystem]:
    """Each of the others as it is and tuned; peers that cannot be installed are left out."""
    systems = [holdfast()]
    if with_torchrun:
        systems += [torchrun(tuned=tuned) for tuned in (False, True)]
    for name in peers:
        try:
            systems += [NODE_PEERS[name](folder / name, tuned=tuned) for tuned in (False, True)]
        except NotAvailable as error:
            say(f"{name}: not available: {error}")
    return systems


def measure_all(systems: list[NodeSystem], *, rounds: int, only: Sequence[str] = tuple(EXPERIMENTS)) -> Samples:
    chosen = list(only)
    if NODE_CUT_OFF in chosen and (reason := obstacle()):
        say(f"{NODE_CUT_OFF}: not measured: {reason}")
        chosen.remove(NODE_CUT_OFF)
    samples: Samples = {}
    for turn in range(rounds):
        for name in chosen:
            for system in systems if turn % 2 == 0 else systems[::-1]:
                if name in system.experiments:
                    took_s = measure(name, system)
                    samples.setdefault((name, system.name), []).append(took_s)
                    outcome = "not at all" if took_s is None else f"{took_s:.3f} s"
                    say(f"{turn + 1}/{rounds}  {name}, {system.name}: {outcome}")
    return samples


def document(samples: Samples) -> list[dict[str, object]]:
    return [{"what": what, "system": system, "s": s} for (what, system), s in samples.items()]


def main() -> int:
    args = parse_args()

    def measure_chosen() -> Samples:
        peers = [] if args.peers is None else args.peers or list(NODE_PEERS)
        systems = systems_of(with_torchrun=args.torchrun, peers=peers, folder=args.peers_folder)
        return measure_all(systems, rounds=args.rounds, only=args.only or tuple(EXPERIMENTS))

    return conduct(measure_chosen, table=table, document=document, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
