"""What a terminal shows of a job's story: some of its entries, and a line below the workers' output."""

from __future__ import annotations

import time
from typing import Any

from holdfast.spec.job import JobRules

QUIET_KINDS = frozenset({"node_joined", "node_refused", "world_formed", "workers_started", "resumed", "job_finished"})
"""What goes as expected is for the events file, not for the terminal."""


def deserves_a_line(entry: dict[str, Any], *, single: bool) -> bool:
    """Whether an entry of the story is shown; `single`: in a job of one node, which never waits for others."""
    again = entry["kind"] == "workers_started" and entry["since_failure_ms"] is not None
    told_elsewhere = (entry["kind"] == "waiting" and single) or entry.get("decision") == "finish"
    return again or (entry["kind"] not in QUIET_KINDS and not told_elsewhere)


class StatusLine:
    """What the job is doing, from the entries of its story."""

    def __init__(self, rules: JobRules) -> None:
        self._rules = rules
        self._phase = "warming up"
        self._generation = 0
        self._restarts = 0
        self._num_nodes = 0
        self._world_size = 0
        self._started: set[str] = set()
        self._began_at = time.monotonic()

    def note(self, entry: dict[str, Any]) -> None:
        match entry["kind"]:
            case "waiting":
                self._phase = entry["reason"]
            case "world_formed":
                self._phase = "starting"
                self._generation = entry["generation"]
                self._num_nodes = len(entry["placements"])
                self._world_size = entry["world_size"]
                self._started = set()
            case "incident_opened":
                self._phase = "repairing"
            case "incident_closed" if entry["verdict"] == "repaired":
                self._phase = "running"
            case "workers_started" if self._phase == "starting":
                self._started.add(entry["node"])
                self._phase = "running" if len(self._started) == self._num_nodes else "starting"
            case "stopping" | "resizing":
                self._restarts = entry.get("restarts_used", self._restarts)
                self._phase = "restarting" if entry.get("decision") != "finish" else "ending"

    def render(self, now: float) -> str:
        elapsed = int(now - self._began_at)
        rules = self._rules
        parts = [
            f"{self._phase}",
            f"nodes {self._num_nodes}/{rules.max_nodes}",
            f"ranks {self._world_size}",
            f"generation {self._generation}",
            f"restarts {self._restarts}/{rules.max_restarts}",
            f"{elapsed // 3600:d}:{elapsed // 60 % 60:02d}:{elapsed % 60:02d}",
        ]
        return "holdfast  " + "  ".join(parts)

    def brief(self) -> str:
        """For a line that is shared with others."""
        return f"{self._phase}, nodes {self._num_nodes}/{self._rules.max_nodes}, generation {self._generation}"
