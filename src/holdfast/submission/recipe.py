"""What a node of a submitted job runs: `holdfast run`, with its own name and rank, and the way to the master."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.core.fleet.actions import NodeOrder
from holdfast.core.ids import Address
from holdfast.spec.submit import RoleSpec
from holdfast.submission.directory import JobDirectory


def node_command(
    role: RoleSpec, directory: JobDirectory, master: Address, order: NodeOrder, address: str
) -> Sequence[str]:
    own = [f"--node-name={order.name}", "--no-master", f"--rdzv-endpoint={master}", f"--token-file={directory.token}"]
    own.append(f"--run-dir={directory.runs}")
    if role.max_nodes > 1:
        own.append(f"--node-rank={order.rank}")
        own += [f"--local-addr={address}"] if address else []
    run = [sys.executable, "-P", "-m", "holdfast.cli.main", "run"]
    return [*run, *role.run_flags, *own, *role.command.how, *role.command.words]


def node_variables(role: RoleSpec, order: NodeOrder) -> dict[str, str]:
    """By the names that DLRover gives them."""
    return {
        "NODE_ID": str(order.id),
        "NODE_RANK": str(order.rank),
        "NODE_NUM": str(role.max_nodes),
        "NODE_TYPE": role.name,
        **role.env,
    }
