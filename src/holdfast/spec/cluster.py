"""The cluster that forms itself: what a process is told by its environment, when nobody launched it.

Every setting has a variable of our own and the one that MindSpore's dynamic cluster uses; ours wins, and says so.
"""

from __future__ import annotations

import ipaddress
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from holdfast.errors import SpecError
from holdfast.spec.tls import TlsSpec, find_tls

T = TypeVar("T")


class Role(StrEnum):
    SCHEDULER = "scheduler"
    WORKER = "worker"


ROLES = {
    "scheduler": Role.SCHEDULER,
    "MS_SCHED": Role.SCHEDULER,
    "worker": Role.WORKER,
    "MS_WORKER": Role.WORKER,
}


@dataclass(frozen=True, slots=True)
class Variable:
    ours: str
    theirs: str
    default: str | None
    meaning: str


VARIABLES = {
    "role": Variable("HOLDFAST_ROLE", "MS_ROLE", None, "scheduler or worker (MS_SCHED, MS_WORKER)"),
    "host": Variable("HOLDFAST_SCHED_HOST", "MS_SCHED_HOST", None, "address of the scheduler"),
    "port": Variable("HOLDFAST_SCHED_PORT", "MS_SCHED_PORT", None, "port of the scheduler, 1024 to 65535"),
    "node_id": Variable("HOLDFAST_NODE_ID", "MS_NODE_ID", "", "name of this process, unique; a number is its rank"),
    "num_workers": Variable("HOLDFAST_WORKER_NUM", "MS_WORKER_NUM", None, "how many workers the cluster has"),
    "recovery": Variable("HOLDFAST_ENABLE_RECOVERY", "MS_ENABLE_RECOVERY", "0", "1: lost processes may come back"),
    "recovery_path": Variable("HOLDFAST_RECOVERY_PATH", "MS_RECOVERY_PATH", "", "where the scheduler keeps its state"),
    "topo_timeout": Variable("HOLDFAST_TOPO_TIMEOUT", "MS_TOPO_TIMEOUT", "1800", "seconds for all to come"),
    "node_timeout": Variable("HOLDFAST_NODE_TIMEOUT", "MS_NODE_TIMEOUT", "30", "seconds of silence that are tolerated"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec:
    """One process's place in a cluster."""

    role: Role
    host: str
    port: int
    node_id: str
    num_workers: int
    recovery: bool
    recovery_path: str
    topo_timeout_s: float
    node_timeout_s: float
    tls: TlsSpec | None = None
    notes: tuple[str, ...] = ()
    """What a person should know about how the settings were found."""


def load_cluster(env: Mapping[str, str] | None = None, *, tls_config: str | None = None) -> ClusterSpec | None:
    """The cluster this process belongs to; None if no role is set. TLS is as given here, or else by its variable."""
    env = os.environ if env is None else env
    settings = _Settings(env)
    if not settings.is_set("role"):
        return None
    recovery = settings.choice("recovery", {"0": False, "1": True})
    tls, notes = find_tls(tls_config, env, source="holdfast.init(tls=...)")
    return ClusterSpec(
        role=settings.choice("role", ROLES),
        host=settings.address("host"),
        port=settings.whole("port", 1024, 65535),
        node_id=settings.text("node_id") or f"node-{uuid.uuid4().hex[:8]}",
        num_workers=settings.whole("num_workers", 1, 1 << 20),
        recovery=recovery,
        recovery_path=settings.directory("recovery_path") if recovery else "",
        topo_timeout_s=settings.seconds("topo_timeout"),
        node_timeout_s=settings.seconds("node_timeout"),
        tls=tls,
        notes=(*settings.notes, *notes),
    )


class _Settings:
    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.notes: list[str] = []

    def is_set(self, name: str) -> bool:
        variable = VARIABLES[name]
        return bool(self._env.get(variable.ours) or self._env.get(variable.theirs))

    def text(self, name: str) -> str:
        return self._find(name)[1]

    def whole(self, name: str, least: int, most: int) -> int:
        source, value = self._find(name)
        if not value.strip().isdecimal() or not least <= int(value) <= most:
            raise SpecError(source, value, f"it must be a whole number from {least} to {most}")
        return int(value)

    def seconds(self, name: str) -> float:
        source, value = self._find(name)
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if number <= 0:
            raise SpecError(source, value, "it must be a number of seconds above 0")
        return number

    def choice(self, name: str, choices: Mapping[str, T]) -> T:
        source, value = self._find(name)
        if value not in choices:
            raise SpecError(source, value, f"it must be one of {', '.join(choices)}")
        return choices[value]

    def address(self, name: str) -> str:
        source, value = self._find(name)
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            raise SpecError(source, value, "it must be an IPv4 or IPv6 address") from None

    def directory(self, name: str) -> str:
        source, value = self._find(name)
        if not value:
            raise SpecError(source, value, "with recovery on, it must name a directory")
        try:
            os.makedirs(value, exist_ok=True)
        except OSError as error:
            raise SpecError(source, value, f"it cannot be made: {error.strerror}") from error
        return os.path.abspath(value)

    def _find(self, name: str) -> tuple[str, str]:
        variable = VARIABLES[name]
        ours, theirs = self._env.get(variable.ours), self._env.get(variable.theirs)
        if ours and theirs and ours != theirs:
            self.notes.append(f"{variable.ours}={ours} counts, not {variable.theirs}={theirs}")
        if ours or theirs:
            return (variable.ours, ours) if ours else (variable.theirs, theirs or "")
        if variable.default is None:
            raise SpecError(f"{variable.ours} (or {variable.theirs})", None, f"it must be set: {variable.meaning}")
        return variable.ours, variable.default
