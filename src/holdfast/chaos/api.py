"""What a fault is, whom it strikes, and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import SpecError
from holdfast.spec.job_kinds import parse_bytes
from holdfast.spec.settings import Setting


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for a later one with the same id."""

    pid: int
    start: str
    """When it began, in the kernel's words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Whom a fault strikes. Plain data: whoever takes the fault back may be another process."""

    name: str
    """In words."""
    node: str = ""
    """Name of its node; empty for the master of a submitted job."""
    processes: tuple[Process, ...] = ()
    """Those that were meant, the first one first."""
    is_whole_node: bool = False
    root: Process | None = None
    """The first process of the node: all its others are below it, or carry its mark."""
    agent: Process | None = None
    network: Process | None = None
    """A process in the node's own network; None if it shares this machine's."""
    cgroups: dict[str, str] = field(default_factory=dict)
    """Directory by controller."""
    directory: str = ""
    memory_bytes: int | None = None
    marks: dict[str, str] = field(default_factory=dict)
    """Variables by which the processes of the node are known; whoever carries them ends with it."""

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)


@dataclass(frozen=True, slots=True)
class Parameter:
    summary: str
    default: str = ""
    """Empty: it has none, and is found out by the fault."""


class Values:
    """The parameters of one injection. What is wrong with one is said with its name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    def text(self, name: str) -> str:
        return self._texts[name]

    def number(self, name: str, *, least: float, most: float) -> float:
        try:
            number = float(self._texts[name])
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            raise SpecError(f"--set {name}", self._texts[name], f"it must be a number from {least:g} to {most:g}")
        return number

    def whole(self, name: str, *, least: int, most: int) -> int:
        text = self._texts[name]
        if not text.isdecimal() or not least <= int(text) <= most:
            raise SpecError(f"--set {name}", text, f"it must be a whole number from {least} to {most}")
        return int(text)

    def size(self, name: str) -> int:
        return parse_bytes(Setting(self._texts[name], f"--set {name}"))

    def choice(self, name: str, *names: str) -> str:
        if self._texts[name] not in names:
            raise SpecError(f"--set {name}", self._texts[name], f"it must be one of {', '.join(names)}")
        return self._texts[name]


Memo = dict[str, Any]
"""What has to be known to take a fault back; JSON."""


class Effect:
    """One fault on one target.

    It is made in the injector and, from the same arguments, again in the warden. Making it checks the arguments and
    changes nothing.
    """

    every_s: float | None = None
    """How often `tend` is called while the fault lasts; None: never."""

    def __init__(self, target: Target, values: Values, *, key: str) -> None:
        self.target = target
        self.values = values
        self.key = key
        """Names this injection, for what it has to leave lying about while it lasts."""
        self.memo: Memo = {}
        self.prepare()

    def prepare(self) -> None:
        """Read the parameters, and refuse what cannot be."""

    def look(self) -> Memo:
        """How things are before the fault, for the undo."""
        return {}

    def apply(self) -> str:
        """Do it; says what was done."""
        raise NotImplementedError

    def tend(self) -> None:
        """Do it again to what has come since."""

    def undo(self) -> None:
        """Take it back, whether it was done wholly, in part or not at all; twice is as good as once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    name: str
    summary: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    needs_root: bool = False
    without_root: str = ""
    """Which fault comes nearest for somebody who is not root, or why there is none; empty if root is not needed."""
    undo: str
    """How it is taken back, in words; empty for what cannot be."""
    make: Callable[..., Effect]
