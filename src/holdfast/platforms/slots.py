"""Room for nodes on numbered hosts: who is where, and who waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, islice

from holdfast.core.fleet.actions import NodeOrder


class Slots:
    """The lowest host that is free and not in quarantine is used first; who asked first is served first, unless that
    took the room that is kept for another role.
    """

    def __init__(self, slots: int | None) -> None:
        self.slots = slots
        self.quarantined: set[str] = set()
        self.pending: dict[str, str] = {}
        """Node to role, in the order in which they asked."""
        self.hosts: dict[str, str] = {}
        """Node to host."""
        self._roles: dict[str, str] = {}
        """Node to role, of those that have a host."""
        self._kept: dict[str, int] = {}

    def keep(self, role: str, num_nodes: int) -> None:
        """Keep room for so many nodes of a role."""
        self._kept[role] = num_nodes

    def ask(self, order: NodeOrder) -> None:
        self.pending[order.name] = order.role

    def admit(self) -> Iterator[tuple[str, str]]:
        """The nodes for which there is room now, each with its host."""
        while (found := self._next()) is not None:
            node, host = found
            self._roles[node] = self.pending.pop(node)
            self.hosts[node] = host
            yield node, host

    def leave(self, node: str) -> bool:
        """Whether it was there; it is not any more, and neither does it wait."""
        self._roles.pop(node, None)
        return self.pending.pop(node, None) is not None or self.hosts.pop(node, None) is not None

    def _next(self) -> tuple[str, str] | None:
        lacking = self._lacking()
        for node, role in self.pending.items():
            kept_for_others = sum(lacking.values()) - lacking[role]
            num_needed = 1 if lacking[role] else 1 + kept_for_others
            free = list(islice(self._free(), num_needed))
            if len(free) == num_needed:
                return node, free[0]
        return None

    def _lacking(self) -> Counter[str]:
        """How many nodes each role has less than are kept for it."""
        present = Counter(self._roles.values())
        return Counter({role: max(0, kept - present[role]) for role, kept in self._kept.items()})

    def _free(self) -> Iterator[str]:
        taken = self.quarantined.union(self.hosts.values())
        numbers = count() if self.slots is None else range(self.slots)
        return (host for host in map(_host, numbers) if host not in taken)


def _host(number: int) -> str:
    return f"host-{number}"
