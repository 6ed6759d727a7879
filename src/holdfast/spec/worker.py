"""What a worker's process is told by its agent, through the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

AGENT = "HOLDFAST_AGENT"
BEACON = "HOLDFAST_BEACON"
STANDBY = "HOLDFAST_STANDBY"
LAUNCHED_AT = "HOLDFAST_LAUNCHED_AT"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker's place; `agent` is None when there is no job around this process."""

    agent: str | None
    beacon: str | None
    rank: int
    local_rank: int
    world_size: int
    launched_at: float = 0.0
    """When the agent asked for this process, in seconds of the machine's monotonic clock."""


def load_worker(env: Mapping[str, str] | None = None) -> WorkerSpec:
    env = os.environ if env is None else env
    agent = env.get(AGENT)
    if agent is None:
        return WorkerSpec(None, None, 0, 0, 1)
    rank = -1 if env.get(STANDBY) else int(env["RANK"])
    local_rank, world_size = int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"])
    # A standby was launched long before it is needed.
    launched_at = 0.0 if rank < 0 else float(env.get(LAUNCHED_AT, "0"))
    return WorkerSpec(agent, env.get(BEACON), rank, local_rank, world_size, launched_at)
