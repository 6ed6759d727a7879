"""From the configuration of a TaskD agent, and the environment, to the manager that it dials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import SpecError
from holdfast.spec.reach import token_from_environment
from holdfast.spec.taskd import TASK_ID, parse_upstream, parse_whole
from holdfast.spec.tls import TlsSpec, find_tls

KEYS = ("Framework", "UpstreamAddr", "UpstreamPort", "ServerRank")
FRAMEWORKS = ("PyTorch", "MindSpore")
MOST_NODES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSpec:
    host: str
    port: int
    node_rank: int | None
    job_id: str | None
    """None takes part in whatever job is served there."""
    token: str | None
    tls: TlsSpec | None


def load_agent(config: object, env: Mapping[str, str] | None = None) -> AgentSpec:
    env = os.environ if env is None else env
    if not isinstance(config, Mapping):
        raise SpecError("config", config, f"it must be a dict with {', '.join(KEYS)}")
    framework = config.get("Framework")
    if framework not in FRAMEWORKS:
        raise SpecError("Framework", framework, f"it must be one of {', '.join(FRAMEWORKS)}")
    host, port = parse_upstream(config, env)
    rank = config.get("ServerRank")
    tls, _ = find_tls(None, env)
    return AgentSpec(
        host=host,
        port=port,
        node_rank=None if rank is None else parse_whole("ServerRank", rank, 0, MOST_NODES),
        job_id=env.get(TASK_ID) or None,
        token=token_from_environment(env),
        tls=tls,
    )
