"""Clusters under test: each process started by itself, as from a shell, and told its role by variables."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from jobs import PYTHON, Job, start, stream, until

import holdfast

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "train.py"
END = re.compile(r"rank (\d+) local (\d+) of (\d+) pid (\d+) weights (\w+)")

SOURCES = str(Path(holdfast.__file__).parents[1])
START_S = 120.0
"""Each process imports torch by itself, on a machine that may be busy."""
SLACK_S = 10.0
"""For what such a machine does late."""


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

    def worker(self, node_id: object = "", *, elsewhere: bool = False, **variables: object) -> Job:
        """`elsewhere`: as one on another machine, of whose processes the scheduler knows nothing."""
        prefix = ("unshare", "--pid", "--fork") if elsewhere else ()
        return self._start({"MS_ROLE": "MS_WORKER", "MS_NODE_ID": node_id, **variables}, prefix=prefix)

    def server(self, node_id: object = "", **variables: object) -> Job:
        return self._start({"MS_ROLE": "MS_PSERVER", "MS_NODE_ID": node_id, **variables}, script=SCRIPTS / "serve.py")

    def follow(self) -> Story:
        """What the scheduler tells, from the first entry on; it has to be there."""
        return Story(self.port)

    def wait_for_hold(self, num_workers: int) -> None:
        """So many workers have come to the steps that are slow."""
        held = lambda: len(list(self.directory.glob("held-*"))) == num_workers  # noqa: E731
        until(held, within_s=START_S, what=f"{num_workers} train", tell=self.started[-1].story)

    def order_exit(self, *, rank: int, code: int) -> None:
        """Have the script of this rank end after its next step."""
        order = self.directory / "order"
        order.write_text(str(code))
        order.rename(self.directory / f"exit-{rank}")

    def saved(self, *, rank: int) -> set[str]:
        """The checkpoints of a rank."""
        return {path.name for path in self.directory.glob(f"saved/rank_{rank}/step_*")}

    def _start(self, variables: dict[str, object], *, script: Path | None = None, prefix: tuple[str, ...] = ()) -> Job:
        env = {name: str(value) for name, value in {**self._variables, **variables}.items()} | {"PYTHONPATH": SOURCES}
        directory = self.directory / f"process{len(self.started)}"
        command = [*prefix, PYTHON, "-u", str(script or self.script), str(self.directory)]
        job = start(command, directory=directory, env=env)
        self.started.append(job)
        return job


class Story(threading.Thread):
    """A scheduler's story, read along until it ends: then the last times are known, though the scheduler is gone."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._entries: list[dict[str, Any]] = []
        self._port = port
        self.start()

    def run(self) -> None:
        # Cut short by the death of its scheduler, it has told what it had to tell.
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._entries.extend(stream(self._port, quiet_s=START_S))

    def first(self, kind: str, **fields: object) -> dict[str, Any]:
        """The first entry of this kind with these fields, once it is there."""
        wanted = {"kind": kind, **fields}.items()
        fits = lambda: [entry for entry in list(self._entries) if wanted <= entry.items()]  # noqa: E731
        return until(fits, within_s=START_S, what=f"{wanted} in the story", tell=lambda: str(self._entries))[0]

    def when(self, kind: str, **fields: object) -> datetime:
        return datetime.fromisoformat(self.first(kind, **fields)["at"])


StartCluster = Callable[..., Cluster]


def end_of(job: Job) -> tuple[int, int, int, int, str]:
    """Rank, local rank, world size, process id and final weights of a worker that has ended well."""
    found = END.search(job.out)
    assert found is not None, job.story()
    rank, local, size, pid, weights = found.groups()
    return int(rank), int(local), int(size), int(pid), weights
