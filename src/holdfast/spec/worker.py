"""What a worker's process is told by its agent, through the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

AGENT = "HOLDFAST_AGENT"
BEACON = "HOLDFAST_BEACON"
STANDBY = "HOLDFAST_STANDBY"
LAUNCHED_AT = "HOLDFAST_LAUNCHED_AT"
WATCH_STEPS = "HOLDFAST_WATCH_STEPS"
ALLOCATOR = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker's place; `agent` is None when there is no job around this process."""

    agent: str | None
    beacon: str | None
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    launched_at: float = 0.0
    """When the agent asked for this process, in seconds of the machine's monotonic clock."""
    may_tune_allocator: bool = True
    """Whether the user left the C library's allocator to us."""


def load_worker(env: Mapping[str, str] | None = None) -> WorkerSpec:
    env = os.environ if env is None else env
    agent = env.get(AGENT)
    may_tune = not any(name in env for name in ALLOCATOR)
    if agent is None:
        return WorkerSpec(None, None, 0, 0, 1, 1, may_tune_allocator=may_tune)
    rank = -1 if env.get(STANDBY) else int(env["RANK"])
    local_rank, world_size, local_size = (int(env[name]) for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    # A standby was launched long before it is needed.
    launched_at = 0.0 if rank < 0 else float(env.get(LAUNCHED_AT, "0"))
    return WorkerSpec(agent, env.get(BEACON), rank, local_rank, world_size, local_size, launched_at, may_tune)
