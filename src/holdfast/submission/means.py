"""What this machine has for nodes: networks and limits of their own, or why not."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import JobError, SpecError
from holdfast.platforms.local.cgroups import Cgroups, Hierarchy, find_hierarchy, group_name, remove_stale
from holdfast.platforms.local.keeper import Keeper
from holdfast.platforms.local.namespaces import listen_in, socket_in
from holdfast.platforms.local.network import MASTER_ADDRESS, Network, obstacle
from holdfast.spec.submit import SubmitSpec
from holdfast.spec.taskd import LOOPBACK, MANAGER_PORT

SHARED = "nodes share this machine's network"
UNHELD = "no control group holds the nodes: a watchdog looks at their memory, and nobody at their cpu"


@dataclass(frozen=True, slots=True)
class Plan:
    """Decided before anything is made."""

    network: bool
    hierarchy: Hierarchy | None
    notes: tuple[str, ...]
    insists: tuple[str, ...] = ()
    """What was asked for by name, `network` or `limits`: without it there is no job."""
    is_limited: bool = False
    """Whether a role has limits to be held to."""

    @classmethod
    def make(cls, spec: SubmitSpec) -> Plan:
        notes: list[str] = []
        asked = spec.platform
        why_not = "" if asked.network == "host" else obstacle()
        if asked.network == "namespace" and why_not:
            raise SpecError("platform.network", asked.network, f"it cannot be done here: {why_not}")
        if asked.network == "auto" and why_not:
            notes.append(f"{SHARED}: {why_not}")
        elif asked.network == "auto":
            notes.append("nodes reach each other and nothing outside; with --network host they share this machine's")
        root = os.geteuid() == 0
        hierarchy = find_hierarchy() if root and asked.limits != "watchdog" else None
        if asked.limits == "cgroup" and hierarchy is None:
            raise SpecError("platform.limits", asked.limits, "no control groups can be made here, or not by this user")
        limited = any(role.cpu is not None or role.memory_bytes is not None for role in spec.roles)
        if hierarchy is None and limited:
            notes.append(UNHELD)
        wishes = {"network": asked.network == "namespace", "limits": asked.limits == "cgroup"}
        insists = tuple(name for name, insisted in wishes.items() if insisted)
        return cls(asked.network != "host" and not why_not, hierarchy, tuple(notes), insists, limited)


class Means:
    """The network and the groups of one job. Made while this process has one thread.

    What turns out to be impossible is done without, with a note, unless the plan insists on it.
    """

    def __init__(self, plan: Plan, *, guard: int) -> None:
        self.notes: list[str] = []
        self.network: Network | None = None
        self.cgroups: Cgroups | None = None
        self._keeper: Keeper | None = None
        if plan.hierarchy is not None:
            remove_stale(plan.hierarchy)
            self.cgroups = Cgroups(plan.hierarchy, group_name(guard))
        groups = [] if self.cgroups is None else list(self.cgroups.roots.values())
        if plan.network:
            self._make_network(plan, groups)
        if self._keeper is None and groups:
            self._keeper = Keeper(network=False, groups=groups)
        if self.cgroups is not None:
            self._open_groups(plan, self.cgroups)

    def _make_network(self, plan: Plan, groups: list[Path]) -> None:
        try:
            self._keeper = Keeper(network=True, groups=groups)
            self.network = Network(self._keeper)
        except JobError as error:
            self.close()
            if "network" in plan.insists:
                raise
            self.notes.append(f"{SHARED}: {error}")

    def _open_groups(self, plan: Plan, cgroups: Cgroups) -> None:
        try:
            cgroups.open()
        except JobError as error:
            cgroups.close()
            self.cgroups = None
            if "limits" in plan.insists:
                self.close()
                raise
            if plan.is_limited:
                self.notes.append(f"{UNHELD} ({error})")

    def listen(self, index: int) -> socket.socket:
        """For the master of one of the roles, where every node can reach it."""
        try:
            if self.network is not None:
                return listen_in(self.network.pid, MASTER_ADDRESS, MANAGER_PORT + index)
            return socket.create_server((LOOPBACK, 0), backlog=1024)
        except OSError as error:
            raise JobError(f"the master cannot listen: {error.strerror}") from error

    def dial(self, family: int) -> socket.socket:
        if self.network is not None:
            return socket_in(self.network.pid, family)
        return socket.socket(family, socket.SOCK_STREAM)

    def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()


def clean_up_after(plan: Plan, *, guard: int) -> None:
    """Remove what a submitter that was killed has left, when everything below the guard is dead."""
    if plan.hierarchy is not None:
        Cgroups(plan.hierarchy, group_name(guard)).close()
