"""What is known of a job that was experimented with: everything a verdict is made of, as it was written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Evidence:
    events: list[Row] = field(default_factory=list)
    """The story of the job and of its nodes."""
    records: list[Row] = field(default_factory=list)
    """What the training wrote."""
    actions: list[Row] = field(default_factory=list)
    """What was done to the job: `at`, `what` (fault, scale, end, stop; failed, skipped: due and not done), `text`."""
    exit_code: int | None = None
    leftovers: list[str] = field(default_factory=list)
    """Processes that outlived the job."""
    reference: dict[str, str] = field(default_factory=dict)
    """The weights of an undisturbed run at the end of each epoch."""

    def told(self, **wanted: object) -> list[Row]:
        """Events that have these values."""
        return [event for event in self.events if all(str(event.get(k)) == str(v) for k, v in wanted.items())]

    def of(self, what: str) -> list[Row]:
        return [record for record in self.records if record["what"] == what]

    @property
    def struck_at(self) -> list[float]:
        """When something was done that the job has to cope with."""
        return [action["at"] for action in self.actions if action["what"] in ("fault", "scale")]

    def longest_pause(self) -> tuple[float, float]:
        """The longest time without a step, from the first one to the end of the training, and when it began."""
        times = sorted(record["at"] for record in self.records if record["what"] in ("step", "end"))
        pauses = [(after - before, before) for before, after in pairwise(times)]
        return max(pauses, default=(0.0, 0.0))


def seconds(event: Row) -> float:
    """When an event was told, in seconds of the clock on the wall."""
    return datetime.fromisoformat(event["at"]).timestamp()
