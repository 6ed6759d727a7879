"""What one seed simulates: how many nodes, under which rules, and how bad the weather is."""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.spec.job import JobRules

MIN_NODES, MAX_NODES = 8, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Everything that is fixed before the simulation begins."""

    rules: JobRules
    num_nodes: int
    num_workers: int
    drain_s: float
    shutdown_s: float
    work_s: float
    """How long an undisturbed generation takes."""
    faults_s: float
    """How long faults go on; then there is calm."""
    num_faults: int
    hosted: bool
    """Whether the first node hosts the master, as `holdfast run` does; else it has a machine of its own."""
    steady_names: bool
    """Whether a replaced agent has the name of the one before."""
    drop: float
    double: float
    spike: float
    """The shares of messages that are lost, delivered twice, and late."""


def draw_setup(rng: random.Random) -> Setup:
    num_nodes = round(MIN_NODES * (MAX_NODES / MIN_NODES) ** rng.random())
    max_nodes = max(2, num_nodes + rng.choice((-3, -1, 0, 0, 2)))
    min_nodes = rng.randint(max_nodes // 2, max_nodes) if rng.random() < 0.7 else rng.randint(1, max_nodes // 2)
    lease_s = rng.uniform(3.0, 6.0)
    drain_s, shutdown_s = rng.uniform(0.5, 1.5), rng.uniform(1.0, 4.0)
    flaky = rng.random() < 0.5
    # Some defects need a crowd of faults, others a single one with nothing else to cover its tracks.
    crowded = rng.random() < 0.65
    return Setup(
        rules=JobRules(
            job_id="sim",
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            max_restarts=rng.choice((0, 1, 3, 100, 100, 100)),
            restart_window_s=rng.choice((10.0, 3600.0)),
            join_timeout_s=rng.uniform(15.0, 25.0),
            last_call_s=rng.uniform(0.2, 2.0),
            beat_s=lease_s / rng.uniform(3.5, 5.0),
            lease_s=lease_s,
            # Whoever has not stopped by then has lost its workers, whichever way it was stopped: see `Crew.sweep`.
            stop_timeout_s=lease_s + drain_s + shutdown_s + rng.uniform(1.0, 3.0),
        ),
        num_nodes=num_nodes,
        num_workers=rng.choice((1, 1, 1, 2, 3)),
        drain_s=drain_s,
        shutdown_s=shutdown_s,
        work_s=rng.uniform(2.0, 10.0) if crowded else rng.uniform(10.0, 25.0),
        faults_s=rng.uniform(6.0, 20.0),
        num_faults=rng.randint(3, 18) if crowded else rng.randint(1, 3),
        hosted=rng.random() < 0.5,
        steady_names=rng.random() < 0.5,
        drop=rng.uniform(0.0, 0.08) if flaky else 0.0,
        double=rng.uniform(0.0, 0.05),
        spike=rng.uniform(0.0, 0.05) if flaky else 0.0,
    )
