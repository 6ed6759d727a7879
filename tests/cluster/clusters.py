"""Clusters under test: each process started by itself, as from a shell, and told its role by variables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from jobs import PYTHON, Job, start

import holdfast

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "train.py"
END = re.compile(r"rank (\d+) local (\d+) of (\d+) pid (\d+) weights (\w+)")

SOURCES = str(Path(holdfast.__file__).parents[1])
START_S = 120.0
"""Each process imports torch by itself, on a machine that may be busy."""


class Cluster:
    """Processes that share a scheduler's address."""

    def __init__(self, directory: Path, port: int, *, num_workers: int, **variables: object) -> None:
        self.directory = directory
        self.port = port
        self.script = SCRIPT
        self._variables = {
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": port,
            "MS_WORKER_NUM": num_workers,
            "OMP_NUM_THREADS": 1,
            **variables,
        }
        self.started: list[Job] = []

    def scheduler(self, **variables: object) -> Job:
        return self._start({"MS_ROLE": "MS_SCHED", "MS_NODE_ID": "sched", **variables})

    def worker(self, node_id: object = "", **variables: object) -> Job:
        return self._start({"MS_ROLE": "MS_WORKER", "MS_NODE_ID": node_id, **variables})

    def server(self, node_id: object = "", **variables: object) -> Job:
        return self._start({"MS_ROLE": "MS_PSERVER", "MS_NODE_ID": node_id, **variables}, script=SCRIPTS / "serve.py")

    def _start(self, variables: dict[str, object], *, script: Path | None = None) -> Job:
        env = {name: str(value) for name, value in {**self._variables, **variables}.items()} | {"PYTHONPATH": SOURCES}
        directory = self.directory / f"process{len(self.started)}"
        job = start([PYTHON, "-u", str(script or self.script), str(self.directory)], directory=directory, env=env)
        self.started.append(job)
        return job


StartCluster = Callable[..., Cluster]


def end_of(job: Job) -> tuple[int, int, int, int, str]:
    """Rank, local rank, world size, process id and final weights of a worker that has ended well."""
    found = END.search(job.out)
    assert found is not None, job.story()
    rank, local, size, pid, weights = found.groups()
    return int(rank), int(local), int(size), int(pid), weights
