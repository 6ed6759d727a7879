"""Who may join a job: the reasons for which a newcomer is refused."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.core.agreement import disagreements
from holdfast.spec.job import JobRules

if TYPE_CHECKING:
    from holdfast.core.job.events import NodeRegistered

Objection = tuple[str, float | None]
"""The reason, empty if there is none, and when to ask again: None if that cannot help."""


def object_to_settings(newcomer: NodeRegistered, rules: JobRules) -> str:
    """Why a node was started for another job than this, or with other settings."""
    if newcomer.job_id != rules.job_id:
        return f"this master serves job {rules.job_id!r}, not {newcomer.job_id!r} (--rdzv-id)"
    if differences := disagreements(newcomer.agreed, rules.agreed, whose=("here", "at the scheduler")):
        return f"it was started with other settings: {differences}"
    if newcomer.nodes != (rules.min_nodes, rules.max_nodes):
        ours, theirs = f"{rules.min_nodes}:{rules.max_nodes}", f"{newcomer.nodes[0]}:{newcomer.nodes[1]}"
        return f"this job was started with --nnodes {ours}, this node with --nnodes {theirs}"
    if rules.workers_per_node not in (None, newcomer.num_workers):
        wanted, has = rules.workers_per_node, newcomer.num_workers
        return f"this job has {wanted} workers on each node (proc_per_node), this node {has} (--nproc-per-node)"
    if rules.by_address and not _is_address(newcomer.store.host):
        return f"{newcomer.store.host!r} is not an address, and ranks follow from addresses"
    return ""


def object_to_id(newcomer: NodeRegistered, holder: NodeRegistered, rules: JobRules, *, silence_s: float) -> Objection:
    """Why a newcomer cannot have the id of another incarnation, of which nothing was heard for `silence_s`."""
    held = f"node id {newcomer.name!r} is held by pid {holder.pid} on {holder.host}"
    if not rules.replaces:
        return f"{held}, and nobody is replaced while recovery is off", None
    window_s = rules.lease_s if rules.rejection_s is None else min(rules.rejection_s, rules.lease_s)
    if rules.rejection_s is not None and silence_s >= window_s:
        return "", None
    return f"{held}; free after {window_s:g} s without a sign of life", max(0.0, window_s - silence_s)


def object_to_number(newcomer: NodeRegistered, others: Iterable[NodeRegistered], rules: JobRules) -> Objection:
    """Why there is no room for a newcomer among `others`, who are of its role."""
    others = list(others)
    serves = newcomer.is_server
    limit, spares, role = (
        (rules.num_servers, 0, "servers") if serves else (rules.max_nodes, rules.max_spares, "workers")
    )
    rank = newcomer.wanted_rank
    for other in others if rank is not None else ():
        if other.wanted_rank == rank:
            wait_s = rules.lease_s if rules.awaits_rank else None
            wanted = f"the rank of node id {newcomer.name!r}" if rules.by_address else f"--node-rank {rank}"
            return f"{wanted} is taken by node {other.node}", wait_s
    if spares == 0 and rank is not None and rank >= limit:
        return f"node id {rank} is out of range: {limit} {role} have ids below {limit}", None
    if len(others) >= limit + spares:
        full = f"{len(others)} {'servers' if serves else 'nodes'} have joined already"
        return (full, rules.lease_s) if spares else (f"{full}, and this is one too many", None)
    return "", None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
