"""Measure what the loss of a node costs: with a spare, without one, and when a node comes back.

Nodes are agents on this machine, with one worker each; all processes of a node are killed at once. A time is from the
kill, or from the last step of the smaller world, to the first step of the new world on every rank. Progress goes to
stderr.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from processes import adopt_orphans, descendants, end_all_descendants, snapshot, uninterrupted
from restart import interrupt, say

WORKLOAD = Path(__file__).with_name("nodes_workload.py")
BIN = Path(sys.executable).parent
NUM_NODES, MIN_NODES = 3, 2
LIMIT_S = 180.0
SETTLE_S = 1.0
NUM_STEPS = 20
"""So many steps are seen before anything is done to a world."""

Steps = dict[int, list[tuple[float, int]]]
"""When each process ended its steps, and in a world of which size."""


class Job:
    """Nodes that meet at one endpoint."""

    def __init__(self, folder: Path, command: list[str], *, plain: bool = False) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        meeting = [f"--nnodes={MIN_NODES}:{NUM_NODES}", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"]
        self._command = [*command, *meeting, "--nproc-per-node=1", str(WORKLOAD), str(folder)]
        self._command += ["--plain"] if plain else []
        self._port = port
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start_node(self) -> None:
        with (self.folder / "output").open("ab") as output:
            node = subprocess.Popen(
                self._command,
                env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.nodes.append(node)

    def await_host(self) -> None:
        """The first node hosts the job: the others must not come before it."""
        await_that(self._is_up, what="first node")

    def _is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def kill_node(self, index: int) -> float:
        """When the last of its processes was killed."""
        node = self.nodes.pop(index)
        for pid in [node.pid, *descendants([node.pid], snapshot())]:
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


def form(job: Job) -> None:
    job.start_node()
    job.await_host()
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
    "node lost, a spare is there": lose_with_a_spare,
    "node lost, the others go on": lose,
    "node comes, others' pause": grow_back,
}
ELSEWHERE = ("node lost, the others go on", "node comes, others' pause")
"""What torchrun does too; it has no spares."""


def measure(name: str, system: str) -> float:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        command = [str(BIN / "holdfast"), "run"]
        if system == "torchrun":
            command = [str(BIN / "torchrun"), "--rdzv-backend=c10d", "--max-restarts=100"]
        job = Job(Path(folder), command, plain=system == "torchrun")
        try:
            return EXPERIMENTS[name](job)
        finally:
            with uninterrupted():
                end_all_descendants()


def table(samples: dict[tuple[str, str], list[float]]) -> str:
    lines = [f"{NUM_NODES} nodes of one worker, at least {MIN_NODES}: median [least-most], s"]
    for (name, system), values in samples.items():
        spread = f"[{min(values):.3f}-{max(values):.3f}]"
        lines.append(f"{name:30} {system:10} {statistics.median(values):7.3f} {spread}  n={len(values)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torchrun", action="store_true", help="torchrun too; it takes a minute a round")
    parser.add_argument("--json", action="store_true", help="raw samples to stdout, table to stderr")
    args = parser.parse_args()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupt)
    adopt_orphans()
    samples: dict[tuple[str, str], list[float]] = {}
    try:
        for turn in range(args.rounds):
            for name in EXPERIMENTS:
                for system in ("holdfast", "torchrun") if args.torchrun and name in ELSEWHERE else ("holdfast",):
                    try:
                        took_s = measure(name, system)
                    except TimeoutError as error:
                        say(f"{name}, {system}: {error}")
                        continue
                    samples.setdefault((name, system), []).append(took_s)
                    say(f"{turn + 1}/{args.rounds}  {name}, {system}: {took_s:.3f} s")
    except KeyboardInterrupt:
        say("stopped")
        return 130
    finally:
        with uninterrupted():
            end_all_descendants()
    if args.json:
        say(table(samples))
        print(json.dumps([{"what": what, "system": system, "s": s} for (what, system), s in samples.items()], indent=1))
    else:
        print(table(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
