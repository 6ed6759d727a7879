"""`holdfast.init()`: whichever way this process was started, its part in the job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.cluster.logs import redirect_output
from holdfast.errors import SpecError
from holdfast.spec.cluster import Role, load_cluster
from holdfast.spec.tls import require_tls
from holdfast.spec.worker import WorkerSpec, load_worker

if TYPE_CHECKING:
    from holdfast.sdk.session import Run
    from holdfast.spec.cluster import ClusterSpec


_entered: list[Role] = []
"""The role of this process, once it has one: for another one it would have to wait for itself."""


def init(*, tls: str | None = None) -> Run:
    """Join the job around this process; a scheduler serves here and does not return; alone, train alone."""
    spec = load_worker()
    if spec.agent is not None and tls is not None:
        require_tls(tls)
    cluster = load_cluster(tls_config=tls) if spec.agent is None else None
    if cluster is None:
        from holdfast.sdk.session import Run

        return Run(spec)
    if _entered:
        taken = f"this process is a {_entered[0]} already: call it once"
        raise SpecError("holdfast.init()", str(cluster.role), taken)
    redirect_output(cluster)
    for note in cluster.notes:
        sys.stderr.write(f"holdfast: {note}\n")
    if cluster.role is Role.SCHEDULER:
        from holdfast.cluster.scheduler import schedule

        schedule(cluster)
    run = _serve(cluster) if cluster.role is Role.SERVER else _join(cluster)
    _entered.append(cluster.role)
    return run


def _serve(cluster: ClusterSpec) -> Run:
    from holdfast.cluster.server import Server

    return Server(cluster)  # type: ignore[return-value]  # one script is for all roles: it asks for `role`


def _join(cluster: ClusterSpec) -> Run:
    from holdfast.cluster import worker
    from holdfast.sdk.session import Run

    alone = WorkerSpec(None, None, -1, 0, cluster.num_workers, 1)
    run = Run(alone, connect=lambda interrupt: worker.Line(cluster, interrupt=interrupt))
    run.meet()
    return run
