"""What a worker's process is told by its agent, through the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

AGENT = "HOLDFAST_AGENT"
BEACON = "HOLDFAST_BEACON"
STANDBY = "HOLDFAST_STANDBY"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker's place; `agent` is None when there is no job around this process."""

    agent: str | None
    beacon: str | None
    rank: int
    local_rank: int
    world_size: int


def load_worker(env: Mapping[str, str] | None = None) -> WorkerSpec:
    env = os.environ if env is None else env
    agent = env.get(AGENT)
    if agent is None:
        return WorkerSpec(None, None, 0, 0, 1)
    if env.get(STANDBY):
        return WorkerSpec(agent, env.get(BEACON), -1, int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"]))
    return WorkerSpec(agent, env.get(BEACON), int(env["RANK"]), int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"]))
