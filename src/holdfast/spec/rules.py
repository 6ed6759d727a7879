"""What every node of a job must agree on, from flags and variables."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping

from holdfast.errors import SpecError
from holdfast.spec.job import JobRules
from holdfast.spec.settings import Setting, Settings
from holdfast.spec.strategy import Strategy, parse_strategies
from holdfast.spec.taskd import MAX_RESTARTS, TASK_ID

SHUTDOWN_S = 30.0
OFF = "off"


def find_rules(settings: Settings, env: Mapping[str, str], notes: list[str], *, managed: bool) -> JobRules:
    low, high = parse_nodes(settings["nnodes"])
    conf = _rendezvous_conf(settings["rdzv_conf"], notes)
    single = settings.on("standalone") or high == 1
    if settings.on("standalone") and high > 1:
        notes.append("--standalone: this job runs on this node alone, whatever --nnodes says")
        low = high = 1
    job_id = settings.text("rdzv_id")
    if not settings.given("rdzv_id"):
        job_id = env.get(TASK_ID) or (str(uuid.uuid4()) if single else job_id)
    unlimited = managed and not settings.given("max_restarts")
    beat_s = conf.get("keep_alive_interval", 1.0)
    shutdown = find_shutdown(settings, env) or SHUTDOWN_S
    return JobRules(
        job_id=job_id,
        min_nodes=low,
        max_nodes=high,
        max_restarts=MAX_RESTARTS if unlimited else settings["max_restarts"].whole(0),
        restart_window_s=_window(conf.get("restart_window", 3600.0)),
        strategies=_strategies(settings, env, notes),
        join_timeout_s=conf.get("join_timeout", 600.0),
        repair_timeout_s=conf.get("repair_timeout", 1800.0),
        last_call_s=conf.get("last_call_timeout", 5.0),
        beat_s=beat_s,
        lease_s=beat_s * conf.get("keep_alive_max_attempt", 5.0),
        stop_timeout_s=shutdown + 30.0,
        network_check=settings.on("network_check"),
        exclude_straggler=settings.on("exclude_straggler"),
    )


def _window(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds


MINDSPORE_SWITCHES = {"UCE": "retry", "HCCE": "retry", "ARF": "recover", "TTP": "dump"}


def _strategies(settings: Settings, env: Mapping[str, str], notes: list[str]) -> tuple[Strategy, ...]:
    """From the flag; else from MindSpore's switches, where they are set; else the default."""
    if env.get("HCCL_OP_RETRY_ENABLE"):
        notes.append("HCCL_OP_RETRY_ENABLE does nothing here: a collective that fails makes the whole step run again")
    switches = env.get("MS_ENABLE_TFT")
    if settings.given("recover_strategy") or not switches:
        setting = settings["recover_strategy"]
        return parse_strategies(setting.value or "", source=setting.source)
    names: list[str] = []
    for name, value in re.findall(r"(\w+)\s*:\s*(\w+)", switches):
        if name not in MINDSPORE_SWITCHES:
            notes.append(f"MS_ENABLE_TFT: {name} does nothing here")
        elif value == "1":
            names.append(MINDSPORE_SWITCHES[name])
    if not names and not re.search(r"\w+\s*:\s*\w+", switches):
        raise SpecError("MS_ENABLE_TFT", switches, "it must look like {UCE:1, HCCE:1}")
    return parse_strategies(",".join(names), source="MS_ENABLE_TFT")


CONF_KEYS = {
    "join_timeout": "join_timeout",
    "timeout": "join_timeout",
    "pend_timeout": "join_timeout",
    "repair_timeout": "repair_timeout",
    "restart_window": "restart_window",
    "last_call_timeout": "last_call_timeout",
    "lastcall_timeout": "last_call_timeout",
    "keep_alive_interval": "keep_alive_interval",
    "keep_alive_max_attempt": "keep_alive_max_attempt",
}


def _rendezvous_conf(setting: Setting, notes: list[str]) -> dict[str, float]:
    conf: dict[str, float] = {}
    names: dict[str, str] = {}
    for item in (setting.value or "").split(","):
        if not item.strip():
            continue
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise SpecError(setting.source, item, "it must be KEY=VALUE,KEY=VALUE")
        if key not in CONF_KEYS:
            notes.append(f"{setting.source}: {key} does nothing here")
            continue
        number = Setting(value, f"{setting.source} {key}")
        seconds = parse_window(number) if key == "restart_window" else number.seconds()
        if key.startswith(("keep_alive", "repair")) and seconds <= 0:
            raise SpecError(number.source, value, "it must be above 0")
        meant = CONF_KEYS[key]
        if key == "timeout" and meant in conf:
            continue
        if names.get(meant, "timeout") != "timeout" and conf[meant] != seconds:
            raise SpecError(setting.source, setting.value, f"{names[meant]} and {key} mean the same: give one of them")
        conf[meant], names[meant] = seconds, key
    return conf


def parse_window(setting: Setting) -> float:
    """Seconds above 0; `off` is without end."""
    seconds = math.inf if setting.value == OFF else setting.seconds()
    if not seconds > 0:
        raise SpecError(setting.source, setting.value, "it must be a number of seconds above 0, or off")
    return seconds


def parse_nodes(setting: Setting) -> tuple[int, int]:
    least, colon, most = (setting.value or "").partition(":")
    try:
        low, high = int(least), int(most if colon else least)
    except ValueError:
        raise SpecError(setting.source, setting.value, "it must be N or MIN:MAX, as in 2 or 2:4") from None
    if not 1 <= low <= high:
        raise SpecError(setting.source, setting.value, "MIN must be 1 or more and not above MAX")
    return low, high


def find_shutdown(settings: Settings, env: Mapping[str, str]) -> float | None:
    if settings.given("shutdown_timeout"):
        return settings["shutdown_timeout"].seconds()
    if value := env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        return Setting(value, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT").seconds()
    return None
