"""Who takes part in the next world, and with which ranks.

`decide_world` is a function of who is ready and when they came; it changes nothing. A node keeps its group
rank while the world has room for it, so a restart without losses gives every worker its old rank.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.core.ids import Address, Placement
from holdfast.spec.job import JobRules


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could be in the next world."""

    node: str
    host: str
    num_workers: int
    store: Address
    """Where the workers' store would be if this node became the first."""
    ready_at: float | None
    """When it became ready; None while it is still stopping workers."""
    wanted_rank: int | None = None
    previous_rank: int | None = None
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The nodes of the next world in order of group rank, or why there is none yet."""

    members: tuple[Candidate, ...] | None
    reason: str
    wake_at: float | None = None
    """When to decide again if nothing happens before."""
    is_count: bool = False
    """The reason is how many are here, which changes with each that comes."""


def decide_world(candidates: Sequence[Candidate], *, first: bool, now: float, rules: JobRules) -> Decision:
    """Form a world, or say why not yet. `first` leaves the door open for latecomers."""
    ready = [c for c in candidates if c.ready_at is not None]
    if stopping := [c.node for c in candidates if c.ready_at is None]:
        return Decision(None, f"waiting for {_names(stopping)} to stop the old workers")
    if len(ready) < rules.min_nodes:
        return Decision(None, f"{len(ready)} of {rules.min_nodes} nodes are here", is_count=True)
    if len(ready) >= rules.max_nodes:
        reason = f"{rules.max_nodes} of {rules.max_nodes} nodes are here"
        return Decision(choose(ready, rules.max_nodes, rules=rules), reason)
    if not first:
        reason = f"{len(ready)} of {rules.max_nodes} nodes are here and that is enough"
        return Decision(choose(ready, rules.max_nodes, rules=rules), reason)
    times = sorted(c.ready_at for c in ready if c.ready_at is not None)
    closes_at = times[rules.min_nodes - 1] + rules.last_call_s
    if now < closes_at:
        reason = f"{len(ready)} nodes are here, open for up to {rules.max_nodes}"
        return Decision(None, reason, closes_at, is_count=len(ready) > rules.min_nodes)
    members = choose(ready, rules.max_nodes, rules=rules)
    return Decision(members, f"{len(ready)} nodes are here and the door is closed")


def describe_absence(candidates: Sequence[Candidate], *, expected: int) -> str:
    """Who is missing, where the ranks tell; else who is here."""
    ranks = {candidate.wanted_rank for candidate in candidates}
    if candidates and None not in ranks:
        return f"missing: {', '.join(str(rank) for rank in range(expected) if rank not in ranks)}"
    names = ", ".join(sorted(candidate.node for candidate in candidates)) or "none"
    return f"here: {names}; {expected - len(candidates)} missing"


def seat(members: Sequence[Candidate]) -> list[Candidate]:
    """`members` in order of group rank: those with a rank keep it, the others fill the gaps."""
    seats: dict[int, Candidate] = {}
    standing: list[Candidate] = []
    for member in members:
        rank = member.wanted_rank if member.wanted_rank is not None else member.previous_rank
        if rank is not None and rank < len(members) and rank not in seats:
            seats[rank] = member
        else:
            standing.append(member)
    gaps = (rank for rank in range(len(members)) if rank not in seats)
    seats.update(zip(gaps, standing, strict=True))
    return [seats[rank] for rank in range(len(members))]


def place(members: Sequence[Candidate]) -> tuple[Placement, ...]:
    """Ranks for `members`, in their order."""
    placements: list[Placement] = []
    first_rank = 0
    for group_rank, member in enumerate(members):
        placements.append(
            Placement(member.node, group_rank, first_rank, member.num_workers, member.host, member.machine)
        )
        first_rank += member.num_workers
    return tuple(placements)


def choose(ready: Sequence[Candidate], most: int, *, rules: JobRules) -> tuple[Candidate, ...]:
    """The first `most` of those who are ready, seated. Sorted only here: nodes join one by one, and thousands do."""
    order = _by_address if rules.by_address else _by_name
    return tuple(seat(sorted(ready, key=lambda each: (*_claims(each), *order(each)))[:most]))


def seat_by_table(
    members: Sequence[Candidate], table: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[Candidate, ...], str]:
    """`members` with the ranks that the table gives to their addresses; or as they are, and why it does not fit."""
    here: dict[str, list[Candidate]] = {}
    for member in members:
        here.setdefault(member.store.host, []).append(member)
    for address in (*here, *table):
        planned, found = len(table.get(address, ())), len(here.get(address, ()))
        if planned != found:
            return tuple(members), f"it has {planned} ranks for {address}, where {found} workers are"
    seats = {
        rank: member for address, ranks in table.items() for rank, member in zip(ranks, here[address], strict=True)
    }
    return tuple(seats[rank] for rank in range(len(members))), ""


def _claims(candidate: Candidate) -> tuple[int, int]:
    """The user's rank first, then the old rank, then newcomers."""
    late = 1 << 30
    return (
        candidate.wanted_rank if candidate.wanted_rank is not None else late,
        candidate.previous_rank if candidate.previous_rank is not None else late,
    )


def _by_name(candidate: Candidate) -> tuple[object, ...]:
    """By host and name, node2 before node10."""
    return _natural(candidate.host), _natural(candidate.node)


def _by_address(candidate: Candidate) -> tuple[object, ...]:
    return ipaddress.ip_address(candidate.store.host).packed, candidate.node


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _names(nodes: Sequence[str]) -> str:
    shown = ", ".join(sorted(nodes)[:3])
    return shown if len(nodes) <= 3 else f"{shown} and {len(nodes) - 3} more"
