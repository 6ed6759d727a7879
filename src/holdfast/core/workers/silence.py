"""The master does not answer: the ranks of this node may be given away, or the master here is stuck."""

from __future__ import annotations

from holdfast.core.ids import NodePhase
from holdfast.core.workers.events import Action, ReviveMaster
from holdfast.core.workers.state import ACTIVE, State
from holdfast.core.workers.stopping import sweep

REVIVE_LEASES = 3
"""A master that has not answered its own node for so many leases is stuck and is started again."""

UNANSWERED_LEASES = 0.2
"""The same for a beat, where the others would elect another master after half a lease: it should be back by then."""


def is_cut_off(group: State, *, now: float) -> bool:
    return _is_replaceable(group) and now >= group.heard_at + group.spec.rules.fence_s


def fence_at(group: State) -> float | None:
    """When the silence has lasted for too long; None while it does no harm."""
    exposed = group.phase in (*ACTIVE, NodePhase.DRAINING, NodePhase.LEAVING) and _is_replaceable(group)
    return group.heard_at + group.spec.rules.fence_s if exposed and not group.sweeping else None


def go_silent(group: State) -> list[Action]:
    """The master has not answered for too long."""
    group.is_called_off |= group.phase in ACTIVE
    group.phase = NodePhase.DRAINING
    group.reason = f"cut off from the master for {group.spec.rules.fence_s:g} s"
    return sweep(group)


def revive_at(group: State) -> float | None:
    """When the master on this node is taken for stuck."""
    if not group.hosts_master:
        return None
    rules = group.spec.rules
    # One that has not answered since it was started may take its time.
    if group.is_bequeathed and group.heard_at > group.master_since:
        return group.heard_at + rules.beat_s + rules.beat_spread_s + UNANSWERED_LEASES * rules.lease_s
    return max(group.heard_at, group.master_since) + REVIVE_LEASES * rules.lease_s


def revive(group: State, *, late_s: float, now: float) -> list[Action]:
    group.master_since = now
    # If this node itself stood still, the master may have done so too.
    return [ReviveMaster()] if late_s <= group.spec.rules.beat_s else []


def note_master_death(group: State, *, now: float) -> list[Action]:
    group.master_since = now
    if not _is_replaceable(group):
        group.heard_at = now
    return []


def _is_replaceable(group: State) -> bool:
    """Whether the ranks of this node can be given away without its knowing: not by a master that is stuck here, unless
    the others would elect another one."""
    return not group.hosts_master or group.is_bequeathed
