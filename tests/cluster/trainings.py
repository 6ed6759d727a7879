"""Trainings that shell scripts start in the background, watched through their logs and /proc."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from clusters import SOURCES
from jobs import BIN, MARK, Job, kill, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "disaster_recovery"
SCRIPTS = Path(__file__).parent / "dynamic_cluster"
NUM_WORKERS = 8
SAMPLES = 32 * NUM_WORKERS * 20
"""Twenty steps an epoch."""
TRAIN_S = 240.0
"""For nine processes to import torch and train, on a machine that may be busy."""

PLACE = re.compile(r"rank (\d+) of (\d+), local rank (\d+), is process (\d+)")
WEIGHTS = re.compile(r"weights (\w+)")

ENVIRONMENT = {
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": SOURCES,
    "OMP_NUM_THREADS": "1",
}


def prepare(directory: Path, digits: Path, **words: str) -> None:
    """What the scripts expect where they are called: the data, the program under both names, and themselves."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copytree(digits, directory / "MNIST_Data")
    for name in ("train.py", "net.py"):
        shutil.copy(EXAMPLE / "train.py", directory / name)
    for script in SCRIPTS.glob("*.sh"):
        text = script.read_text()
        for word, value in words.items():
            text = text.replace(f"<{word.replace('__', ' ')}>", value)
        (directory / script.name).write_text(text)


class Training:
    """One or more calls of scripts in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jobs: list[Job] = []

    def log(self, name: str) -> str:
        path = self.directory / "device" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, text: str, *, name: str) -> None:
        until(lambda: text in self.log(name), within_s=TRAIN_S, what=f"{text!r} of {name}", tell=self.story)

    def kill(self, role: str, node_id: object = None) -> None:
        """Kill a process by what its environment says, and wait until it is gone."""
        wanted = [f"MS_ROLE={role}"] + ([] if node_id is None else [f"MS_NODE_ID={node_id}"])
        found = [pid for job in self.jobs for pid in job.processes() if set(wanted) <= environment(pid)]
        assert len(found) == 1, f"{wanted}: {found}\n{self.story()}"
        kill(found[0])
        until(lambda: not environment(found[0]), within_s=30, what=f"{wanted} is gone")

    def wait_for_end(self, workers: Iterable[int] = range(NUM_WORKERS)) -> None:
        """The workers have trained to the end, and every process has ended."""
        for worker in workers:
            self.wait_for("weights", name=f"worker_{worker}")
        until(
            lambda: not any(job.processes() for job in self.jobs),
            within_s=TRAIN_S,
            what="every process has ended",
            tell=self.story,
        )

    def weights(self, worker: int) -> str:
        found = WEIGHTS.findall(self.log(f"worker_{worker}"))
        assert len(found) == 1, self.story()
        return found[0]

    def places(self, worker: int) -> list[tuple[int, int, int, int]]:
        """Rank, world size, local rank and process of each that has been this worker."""
        return [tuple(map(int, place)) for place in PLACE.findall(self.log(f"worker_{worker}"))]

    def story(self) -> str:
        logs = sorted((self.directory / "device").glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1000:]}" for path in logs)


Call = Callable[..., None]
"""Calls one of its scripts with arguments."""
StartExample = Callable[[Path], tuple[Training, Call]]


def environment(pid: int) -> set[str]:
    """The variables of a live process of a test."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return set()
    return set(variables) if any(variable.startswith(MARK) for variable in variables) else set()
