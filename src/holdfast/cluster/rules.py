"""What the members of a self-forming cluster agree on."""

from __future__ import annotations

from holdfast.spec.cluster import VARIABLES, ClusterSpec
from holdfast.spec.job import JobRules
from holdfast.spec.strategy import Strategy

STOP_S = 60.0
"""From the order to stop until a process that has not ended is given up, where node timeouts are longer still."""

MAX_ROLLBACKS = 100
"""How often an hour the cluster waits for all of its workers to be started again; it never does that by itself."""

MAX_REPAIRS = 1 << 30
"""An hour: each process that is lost is started again by somebody, as often as they like."""


def rules_of(spec: ClusterSpec, *, store: tuple[str, int] | None = None) -> JobRules:
    """One worker to a node; processes that are lost come back only if recovery is on."""
    strategies = (Strategy.RETRY, Strategy.RECOVER, Strategy.EXIT) if spec.recovery else (Strategy.EXIT,)
    return JobRules(
        job_id="cluster",
        min_nodes=spec.num_workers,
        max_nodes=spec.num_workers,
        max_restarts=MAX_ROLLBACKS if spec.recovery else 0,
        why_no_restarts=f"recovery is off ({VARIABLES['recovery'].ours}=0)",
        max_repairs=MAX_REPAIRS,
        strategies=strategies,
        join_timeout_s=spec.topo_timeout_s,
        last_call_s=0.0,
        max_spares=0,
        beat_s=spec.retry_s[0],
        beat_spread_s=spec.retry_s[1] - spec.retry_s[0],
        heartbeat=spec.heartbeat,
        lease_s=spec.node_timeout_s,
        rejection_s=spec.rejection_window_s,
        stop_timeout_s=min(spec.node_timeout_s, STOP_S),
        store=store,
        num_servers=spec.num_servers,
        by_address=True,
        rank_table=spec.rank_table,
        agreed=spec.agreed,
    )
