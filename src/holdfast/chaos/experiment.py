"""An experiment as a value: given a job, when something happens to it, then it comes out like this."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from holdfast.spec.job_file import Entry

Size: TypeAlias = Literal["small", "normal"]
SIZES: tuple[Size, ...] = ("small", "normal")


PACE_MS = 20.0
"""Steps are so slow that a fault strikes in the middle of one, and so fast that nobody waits long for them."""


@dataclass(frozen=True, slots=True)
class After:
    """When an action is due, counted from the one before: an event, then so many steps more, then so many seconds."""

    event: dict[str, str] = field(default_factory=dict)
    """`kind` and further fields, with the values they must have."""
    steps: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        parts = (
            [" ".join([self.event["kind"], *(v for k, v in self.event.items() if k != "kind")])] if self.event else []
        )
        parts += [f"{self.steps} steps"] if self.steps else []
        parts += [f"{self.seconds:g} s"] if self.seconds else []
        return " and ".join(parts) or "at once"


@dataclass(frozen=True, slots=True)
class Strike:
    """Inject a fault."""

    fault: str
    target: str
    parameters: dict[str, str] = field(default_factory=dict)
    for_s: float | None = None
    """It is undone after so long; otherwise at the end of the job."""

    def __str__(self) -> str:
        words = [self.fault, self.target, *(f"{k}={v}" for k, v in self.parameters.items())]
        return " ".join(words) + ("" if self.for_s is None else f" for {self.for_s:g} s")


@dataclass(frozen=True, slots=True)
class Scale:
    """Ask for another number of nodes, or make room for another number."""

    nodes: int | None = None
    slots: int | None = None

    def __str__(self) -> str:
        wanted = [] if self.nodes is None else [f"{self.nodes} nodes"]
        return "scale to " + " and ".join(wanted + ([] if self.slots is None else [f"room for {self.slots} nodes"]))


@dataclass(frozen=True, slots=True)
class End:
    """Let the training end with its epoch."""

    def __str__(self) -> str:
        return "let the training end"


@dataclass(frozen=True, slots=True)
class Action:
    after: After
    act: Strike | Scale | End


@dataclass(frozen=True, slots=True)
class Expectation:
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}: {render(self.value)}"


@dataclass(frozen=True, slots=True)
class Given:
    job: dict[str, Entry]
    """Fields of the job by their paths, as in a job file."""
    pace_ms: float = PACE_MS
    """How long a step takes at least."""
    patience_s: float = 120.0
    """How long each action is waited for; then the job is stopped, and judged as it is."""


@dataclass(frozen=True, slots=True)
class Negative:
    """What is changed so that the experiment must fail."""

    says: str
    job: dict[str, Entry]
    when: tuple[Action, ...]
    """What is done instead; nothing else if it is empty."""
    fails: tuple[str, ...]
    """The expectations that must not be met."""
    patience_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    name: str
    says: str
    root: str
    """Why it needs root; empty if it does not."""
    instead: str
    """The experiment for those who are not root."""
    given: Given
    when: tuple[Action, ...]
    then: tuple[Expectation, ...]
    negative: Negative

    def negated(self) -> Experiment:
        patience_s = self.given.patience_s if self.negative.patience_s is None else self.negative.patience_s
        given = replace(self.given, job={**self.given.job, **self.negative.job}, patience_s=patience_s)
        return replace(self, given=given, when=self.negative.when or self.when)


def render(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={render(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(render, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
