"""From the configuration of a TaskD proxy to where it listens, and where that leads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import SpecError
from holdfast.spec.taskd import LOOPBACK, parse_address, parse_upstream, parse_whole

KEYS = ("ListenAddr", "ListenPort", "UpstreamAddr", "UpstreamPort", "ServerRank")
PROXY_PORT = 9602


@dataclass(frozen=True, kw_only=True, slots=True)
class ProxySpec:
    listen: tuple[str, int]
    upstream: tuple[str, int]
    notes: tuple[str, ...]
    """What a person should know about how the settings were found."""


def load_proxy(config: object, env: Mapping[str, str] | None = None) -> ProxySpec:
    env = os.environ if env is None else env
    if not isinstance(config, Mapping):
        raise SpecError("config", config, f"it must be a dict with {', '.join(KEYS)}")
    notes = [f"config: {key} does nothing here" for key in config if key not in KEYS]
    host = parse_address("ListenAddr", config.get("ListenAddr") or LOOPBACK)
    port = parse_whole("ListenPort", config.get("ListenPort", PROXY_PORT), 1, 65535)
    if not host.is_loopback:
        notes.append(f"the proxy can be reached from other machines, at {host}:{port}")
    return ProxySpec(
        listen=(str(host), port),
        upstream=parse_upstream(config, env),
        notes=tuple(notes),
    )
