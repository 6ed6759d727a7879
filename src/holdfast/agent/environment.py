"""The variables of a worker: every one that torchrun sets, with the same meaning."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.core.ids import Placement, World
from holdfast.spec.job import NodeSpec
from holdfast.spec.worker import AGENT, BEACON, LAUNCHED_AT, WATCH_STEPS

LOCAL_RANK_MACRO = "${local_rank}"


def worker_env(
    spec: NodeSpec, world: World, placement: Placement, *, local_rank: int, agent: Path, beacon: Path
) -> dict[str, str]:
    rank, size = placement.first_rank + local_rank, world.size
    env = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(placement.group_rank),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(placement.num_workers),
        "WORLD_SIZE": str(size),
        "GROUP_WORLD_SIZE": str(len(world.placements)),
        "ROLE_WORLD_SIZE": str(size),
        "MASTER_ADDR": world.store.host,
        "MASTER_PORT": str(world.store.port),
        "TORCHELASTIC_RESTART_COUNT": str(world.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.rules.max_restarts),
        "TORCHELASTIC_RUN_ID": spec.rules.job_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(spec.signals),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": spec.env.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "HOLDFAST_GENERATION": str(world.generation),
        AGENT: str(agent),
        BEACON: str(beacon),
        LAUNCHED_AT: f"{time.monotonic():.6f}",
    }
    if spec.hang_asked:
        env[WATCH_STEPS] = "1"
    if spec.omp_num_threads is not None:
        env["OMP_NUM_THREADS"] = spec.omp_num_threads
    if spec.virtual_local_rank:
        env |= _virtual_local_rank(spec.env.get("CUDA_VISIBLE_DEVICES"), local_rank)
    return env


def _virtual_local_rank(visible: str | None, local_rank: int) -> dict[str, str]:
    """Each worker sees one device and is told that its local rank is 0."""
    devices = visible.split(",") if visible else []
    device = devices[local_rank] if local_rank < len(devices) else str(local_rank)
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}


def worker_args(args: tuple[str, ...], *, local_rank: int) -> tuple[str, ...]:
    return tuple(arg.replace(LOCAL_RANK_MACRO, str(local_rank)) for arg in args)
