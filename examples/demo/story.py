"""The events file of a job, read as the story of its repairs."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass
class Repair:
    """One or more incidents in a row: a fault that comes during a repair is repaired together with the first."""

    kept: dict[int, int]
    """Rank to process id, of those that were not replaced."""
    opened_s: float
    replaced: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Rank to process ids, before and after."""
    seen: list[str] = field(default_factory=list)
    decided: list[str] = field(default_factory=list)
    verdict: str | None = None
    ms: float = 0.0
    """From the fault being seen to the step that all ranks have done, on the clock of the job."""
    closed_at: float = 0.0
    """The same moment as seconds of the wall clock."""

    def blames(self, rank: int) -> bool:
        return any(symptom.startswith(f"rank {rank} ") for symptom in self.seen)

    def replace(self, pids: dict[int, int]) -> None:
        for rank, pid in pids.items():
            before = self.replaced[rank][1] if rank in self.replaced else self.kept.pop(rank)
            self.replaced[rank] = (before, pid)

    def close(self, entry: dict[str, Any]) -> None:
        self.verdict = entry["verdict"]
        self.ms = (entry["elapsed_s"] - self.opened_s) * 1000
        self.closed_at = datetime.fromisoformat(entry["at"]).timestamp()


@dataclass
class Story:
    pids: dict[int, int] = field(default_factory=dict)
    """The process of each rank now."""
    repairs: list[Repair] = field(default_factory=list)
    restart: str = ""
    """Why all workers were restarted, if they were."""

    @property
    def open_repair(self) -> Repair | None:
        return self.repairs[-1] if self.repairs and self.repairs[-1].verdict is None else None

    def add(self, entry: dict[str, Any]) -> None:
        match entry["kind"]:
            case "workers_started":
                pids = {int(rank): pid for rank, pid in entry["pids"].items()}
                self.pids |= pids
                if self.open_repair:
                    self.open_repair.replace(pids)
            case "incident_opened":
                if not self.open_repair:
                    self.repairs.append(Repair(dict(self.pids), entry["elapsed_s"]))
                self.repairs[-1].seen.append(entry["symptom"])
                self.repairs[-1].decided.append(f"{entry['strategy']}: {entry['reason']}")
            case "incident_closed" if entry["verdict"] != "followed":
                self.repairs[-1].close(entry)
            case "stopping" if entry["decision"] == "restart":
                self.restart = entry["reason"]


def read_story(events: Path) -> Story:
    """What is written so far."""
    story = Story()
    whole_lines = events.read_text().rpartition("\n")[0] if events.exists() else ""
    for line in whole_lines.splitlines():
        story.add(json.loads(line))
    return story
