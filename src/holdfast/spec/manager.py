"""From the configuration of a TaskD manager, and the environment, to the master that it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import SpecError
from holdfast.spec.job import JobRules
from holdfast.spec.load import load_rules
from holdfast.spec.reach import is_loopback, reach_notes, token_from_environment
from holdfast.spec.strategy import Strategy, parse_strategies
from holdfast.spec.taskd import (
    LOOPBACK,
    MANAGER_PORT,
    POD_IP,
    TASK_ID,
    parse_address,
    parse_switch,
    parse_whole,
    process_enabled,
)
from holdfast.spec.tls import TlsSpec, find_tls

JOB_ID, NODES, WORKERS, CLUSTER = "job_id", "node_nums", "proc_per_node", "cluster_infos"
RECOVER, ENABLE = "fault_recover", "taskd_enable"
KEYS = (JOB_ID, NODES, WORKERS, CLUSTER, RECOVER, ENABLE)
MOST = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerSpec:
    """The master of one job, and where it listens."""

    rules: JobRules
    host: str
    port: int
    token: str | None
    tls: TlsSpec | None
    notes: tuple[str, ...]
    """What a person should know about how the settings were found."""


def load_manager(config: object, env: Mapping[str, str] | None = None) -> ManagerSpec:
    env = os.environ if env is None else env
    if not isinstance(config, Mapping):
        raise SpecError("config", config, f"it must be a dict with {', '.join(KEYS)}")
    notes = [f"config: {key} does nothing here" for key in config if key not in KEYS]
    num_nodes, num_workers = _count(config, NODES), _count(config, WORKERS)
    rules, rule_notes = load_rules({"nnodes": str(num_nodes), "rdzv_id": _job_id(config, env)}, env)
    host, port = _address(config, env)
    tls, tls_notes = find_tls(None, env)
    token = token_from_environment(env)
    return ManagerSpec(
        rules=replace(rules, workers_per_node=num_workers, strategies=_strategies(config, env, rules.strategies)),
        host=host,
        port=port,
        token=token,
        tls=tls,
        notes=(
            *notes,
            *rule_notes,
            *tls_notes,
            *_reach(host, port, alone=num_nodes == 1, secret=token is not None or tls is not None),
        ),
    )


def _job_id(config: Mapping[str, Any], env: Mapping[str, str]) -> str:
    job_id = config.get(JOB_ID) or env.get(TASK_ID)
    if not isinstance(job_id, str) or not job_id:
        raise SpecError(JOB_ID, job_id, f"it must be a text that is not empty, as {TASK_ID} has it")
    return job_id


def _count(config: Mapping[str, Any], name: str) -> int:
    return parse_whole(name, config.get(name), 1, MOST)


def _address(config: Mapping[str, Any], env: Mapping[str, str]) -> tuple[str, int]:
    infos = config.get(CLUSTER) or {}
    info = infos[0] if isinstance(infos, list) and len(infos) == 1 else infos
    if not isinstance(info, Mapping):
        raise SpecError(CLUSTER, infos, "it must be one dict, or a list of one, with the manager's ip and port")
    ip, source = (info["ip"], f"{CLUSTER}: ip") if info.get("ip") else (env.get(POD_IP) or LOOPBACK, POD_IP)
    return str(parse_address(source, ip)), parse_whole(f"{CLUSTER}: port", info.get("port", MANAGER_PORT), 1, 65535)


def _strategies(config: Mapping[str, Any], env: Mapping[str, str], usual: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
    """Repair can be switched off, by the variable or the configuration; else the configuration may name how."""
    enabled = process_enabled(env)
    if enabled is None and config.get(ENABLE):
        enabled = parse_switch(ENABLE, config[ENABLE])
    recover = config.get(RECOVER) or "on"
    if not isinstance(recover, str):
        raise SpecError(RECOVER, recover, f"it must be on, off, or names from {', '.join(Strategy)}")
    if enabled is False or recover == "off":
        return (Strategy.EXIT,)
    return usual if recover == "on" else parse_strategies(recover, source=RECOVER)


def _reach(host: str, port: int, *, alone: bool, secret: bool) -> list[str]:
    if is_loopback(host):
        only = (
            f"the master listens at {host}:{port}, which other machines cannot reach; set {POD_IP} to listen elsewhere"
        )
        return [] if alone else [only]
    return reach_notes(host, port, secret=secret)
