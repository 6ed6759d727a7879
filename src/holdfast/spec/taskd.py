"""TaskD's variables, and the kinds of values in its configurations."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from holdfast.errors import SpecError

PROCESS_ENABLE = "TASKD_PROCESS_ENABLE"
TASK_ID = "MINDX_TASK_ID"
POD_IP = "POD_IP"
LOOPBACK = "127.0.0.1"
MANAGER_PORT = 9601
MAX_RESTARTS = 32767
"""Of a job with a manager, where nobody says how many."""

SWITCH = {"on": True, "off": False}


def process_enabled(env: Mapping[str, str]) -> bool | None:
    """Whether a manager runs the master of this node's job; None if nobody says."""
    value = env.get(PROCESS_ENABLE)
    return parse_switch(PROCESS_ENABLE, value) if value else None


def parse_switch(name: str, value: object) -> bool:
    if not isinstance(value, str) or value not in SWITCH:
        raise SpecError(name, value, f"it must be one of {', '.join(SWITCH)}")
    return SWITCH[value]


def parse_whole(name: str, value: object, least: int, most: int) -> int:
    """A number, or its text: TaskD's own configurations have both."""
    text = str(value) if type(value) in (int, str) else ""
    if not text.isdecimal() or not least <= int(text) <= most:
        raise SpecError(name, value, f"it must be a whole number from {least} to {most}")
    return int(text)


def parse_address(name: str, value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        address = None
    if address is None or address.is_unspecified:
        raise SpecError(name, value, "it must be an IPv4 or IPv6 address of this machine")
    return address


def parse_upstream(config: Mapping[str, Any], env: Mapping[str, str]) -> tuple[str, int]:
    """Where the manager is."""
    host = config.get("UpstreamAddr") or env.get(POD_IP) or LOOPBACK
    if not isinstance(host, str):
        raise SpecError("UpstreamAddr", host, "it must be the manager's host")
    return host, parse_whole("UpstreamPort", config.get("UpstreamPort", MANAGER_PORT), 1, 65535)
