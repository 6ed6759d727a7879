"""Jobs under test that were submitted: their nodes, seen as people see them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from jobs import HOLDFAST, Job, clean_env, kill, until

from holdfast.platforms.local.cgroups import find_hierarchy
from holdfast.platforms.local.network import obstacle

WAIT = """
import os, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
names = ("NODE_ID", "GROUP_RANK", "WORLD_SIZE", "HOLDFAST_GENERATION")
with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=10):
    os.write(1, f"here {' '.join(os.environ[name] for name in names)}\\n".encode())
signal.sigwait({signal.SIGUSR1})
"""
SHARED = ("--network", "host", "--limits", "watchdog")
WITHIN_S = 60.0


def why_not_apart() -> str:
    return obstacle() or ("" if find_hierarchy() else "no control groups can be made here")


class Submitted:
    """A job that runs, and the commands that ask and tell it."""

    def __init__(self, job: Job, runtime: Path, scratch: Path) -> None:
        self.job = job
        self.runtime = runtime
        self.scratch = scratch
        """Where its processes make temporary files."""

    def say(self, *command: str) -> subprocess.CompletedProcess[str]:
        env = clean_env({"HOLDFAST_RUNTIME_DIR": str(self.runtime)})
        return subprocess.run([HOLDFAST, *command], env=env, capture_output=True, text=True, timeout=30, check=False)

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """A command that goes on for a while; it ends with the job at the latest."""
        env = clean_env({"HOLDFAST_RUNTIME_DIR": str(self.runtime)})
        return subprocess.Popen([HOLDFAST, *command], env=env, stdout=subprocess.PIPE, text=True)

    def nodes(self) -> dict[str, dict[str, Any]]:
        answer = self.say("nodes", "--json")
        return {node["name"]: node for node in json.loads(answer.stdout)} if answer.returncode == 0 else {}

    def node(self, name: str, **wanted: object) -> dict[str, Any]:
        """A node, once it is as wanted."""

        def look() -> dict[str, Any] | None:
            node = self.nodes().get(name)
            return node if node and all(node[key] == value for key, value in wanted.items()) else None

        return until(look, within_s=WITHIN_S, what=f"{name} {wanted}", tell=self.job.story)

    def here(self, node: int, *, rank: int, size: int) -> None:
        """A worker of a node has told where it is, in whatever generation."""
        self.job.wait_for_output(f"[node-{node}] here {node} {rank} {size} ", within_s=WITHIN_S)

    def wait_for_world(self, size: int) -> None:
        """The last world that was formed is of this size."""

        def look() -> bool:
            worlds = self.job.events("world_formed")
            return bool(worlds) and worlds[-1]["world_size"] == size

        until(look, within_s=WITHIN_S, what=f"a world of {size}", tell=self.job.story)

    def finish(self) -> int:
        """Let the workers of the last generation end; the exit code of the job."""
        last = self.job.events("world_formed")[-1]
        generation, size = last["generation"], last["world_size"]
        for placement in last["placements"]:
            node, rank = placement["node"], placement["group_rank"]
            started = self.job.wait_for("workers_started", generation=generation, node=node)
            # Only one that has said so waits for the signal; another would die of it.
            here = f"[{node}] here {node.removeprefix('node-')} {rank} {size} {generation}\n"
            self.job.wait_for_output(here, within_s=WITHIN_S)
            for pid in started["pids"].values():
                kill(pid, signal.SIGUSR1)
        return self.job.wait(within_s=WITHIN_S)

    def expect_nothing_left(self) -> None:
        self.job.expect_nothing_left(within_s=30)
        for place in (self.runtime, self.scratch):
            until(lambda: not os.listdir(place), within_s=30, what=f"{place} to be empty")  # noqa: B023
        until(lambda: not self._groups(), within_s=30, what="the control groups to go")

    def _groups(self) -> list[Path]:
        """Control groups of this job, which are named after its guard."""
        hierarchy = find_hierarchy()
        bases = hierarchy.bases.values() if hierarchy else ()
        return [group for base in bases for group in base.glob(f"holdfast.{self.job.pid}.*")]
