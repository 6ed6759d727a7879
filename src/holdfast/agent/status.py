"""The line below the workers' output on a terminal."""

from __future__ import annotations

import time
from typing import Any

from holdfast.spec.job import NodeSpec


class StatusLine:
    """What the job is doing, from the entries of its story."""

    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec
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
            case "workers_started":
                self._started.add(entry["node"])
                self._phase = "running" if len(self._started) == self._num_nodes else "starting"
            case "stopping" | "resizing":
                self._restarts = entry.get("restarts_used", self._restarts)
                self._phase = "restarting" if entry.get("decision") != "finish" else "ending"

    def render(self, now: float) -> str:
        elapsed = int(now - self._began_at)
        rules = self._spec.rules
        parts = [
            f"{self._phase}",
            f"nodes {self._num_nodes}/{rules.max_nodes}",
            f"ranks {self._world_size}",
            f"generation {self._generation}",
            f"restarts {self._restarts}/{rules.max_restarts}",
            f"{elapsed // 3600:d}:{elapsed // 60 % 60:02d}:{elapsed % 60:02d}",
        ]
        return "holdfast  " + "  ".join(parts)
