"""Where the nodes and workers of a job meet, and who may come there."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import SpecError
from holdfast.spec.settings import Setting, Settings
from holdfast.spec.taskd import MANAGER_PORT

STORE_PORT = 29500


def find_endpoint(settings: Settings, *, alone: bool) -> tuple[str, int]:
    setting = settings["rdzv_endpoint"]
    if setting.value is None or settings.on("standalone"):
        return ("127.0.0.1", 0) if alone else (settings.text("master_addr").strip("[]"), MANAGER_PORT)
    text = setting.value
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or ":" in port:
        raise SpecError(setting.source, text, "it must be HOST:PORT; write an IPv6 address as [::1]:9601")
    number = Setting(port, setting.source).whole(0, 65535) if port else (0 if alone else MANAGER_PORT)
    if number == 0 and not alone:
        raise SpecError(setting.source, text, "several nodes need one port that all of them know")
    return host, number


def find_store_port(settings: Settings, *, single: bool) -> int:
    if settings.given("master_port"):
        return settings["master_port"].whole(0, 65535)
    by_endpoint = settings["rdzv_endpoint"].value is not None
    return 0 if single or by_endpoint else STORE_PORT


def token_from_environment(env: Mapping[str, str] | None = None) -> str | None:
    return (os.environ if env is None else env).get("HOLDFAST_TOKEN") or None


def find_token(settings: Settings, env: Mapping[str, str]) -> str | None:
    setting = settings["token_file"]
    if setting.value is None:
        return token_from_environment(env)
    try:
        token = Path(setting.value).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(setting.source, setting.value, f"it cannot be read: {error}") from error
    if not token:
        raise SpecError(setting.source, setting.value, "the file is empty")
    return token


def reach_notes(host: str, port: int, *, secret: bool) -> list[str]:
    """What to say of a master that others than this machine can reach."""
    if is_loopback(host):
        return []
    where = f"{host}:{port}" if port else host
    notes = [f"this job can be reached from other machines: its master at {where}, its store on the first node"]
    if not secret:
        notes.append("no token is set: whoever reaches the port can join the job (--token-file, HOLDFAST_TOKEN)")
    return notes


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
