"""A submitted job as JSON: what its commands are answered. Roles are told where a job has several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core.fleet.machine import Fleet, Node, NodeState
from holdfast.core.fleet.roles import Fleets
from holdfast.core.ids import Outcome
from holdfast.platforms.api import Platform
from holdfast.spec.submit import RoleSpec, SubmitSpec
from holdfast.submission.directory import JobDirectory


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job as it is now."""

    spec: SubmitSpec
    fleets: Fleets
    platform: Platform
    directory: JobDirectory
    masters: dict[str, dict[str, Any] | None]
    """What each master says of its role."""
    outcomes: dict[str, Outcome | None]

    def nodes(self) -> list[dict[str, Any]]:
        """Every node that is known, in order of its id."""
        known = [node for fleet in self.fleets.fleets.values() for node in fleet.nodes.values()]
        return [self._node(node) for node in sorted(known, key=lambda node: node.order.id)]

    def job(self) -> dict[str, Any]:
        capacity = self.platform.capacity()
        roles = [self._role(role, self.fleets.fleets[role.name]) for role in self.spec.roles]
        room = {
            "slots": capacity.slots,
            "quarantined": list(capacity.quarantined),
            "directory": str(self.directory.path),
        }
        if self.spec.has_several_roles:
            return {"job_id": self.spec.job_id, **room, "roles": roles}
        master = roles[0].pop("master")
        return {"job_id": self.spec.job_id, **roles[0], **room, "master": master}

    def _role(self, role: RoleSpec, fleet: Fleet) -> dict[str, Any]:
        states = [node.state for node in fleet.nodes.values()]
        outcome = self.outcomes[role.name]
        ended = {"exit_code": None if outcome is None else outcome.exit_code} if self.spec.has_several_roles else {}
        return {
            "role": role.name,
            "min_nodes": role.min_nodes,
            "max_nodes": role.max_nodes,
            "wanted_nodes": fleet.num_wanted,
            "running_nodes": states.count(NodeState.RUNNING),
            "pending_nodes": states.count(NodeState.PENDING),
            "gone_nodes": states.count(NodeState.GONE),
            **ended,
            "master": self.masters[role.name],
        }

    def _node(self, node: Node) -> dict[str, Any]:
        order = node.order
        joined = ((self.masters[order.role] or {}).get("nodes") or {}).get(order.name) or {}
        status = joined.get("status") if node.state is not NodeState.GONE else None
        return {
            "name": order.name,
            **({"role": order.role} if self.spec.has_several_roles else {}),
            "id": order.id,
            "rank": order.rank,
            "state": node.state,
            "why_gone": node.why_gone,
            "memory_bytes": order.memory_bytes,
            "phase": status["phase"] if status else None,
            "agent_pid": joined["pid"] if status else None,
            "worker_pids": [pid for pid in status["pids"] if pid] if status else [],
            "log": str(self.directory.log(order.name)),
            **self.platform.find(order.name).as_dict(),
            "host": node.host,
        }
