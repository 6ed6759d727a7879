"""From flags and variables to a frozen specification. The only reader of the environment.

Flags win over variables, variables over defaults. Every error names what was given and what would be valid.
"""

from __future__ import annotations

import argparse
import ipaddress
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import SpecError
from holdfast.spec.flags import FLAGS, Flag
from holdfast.spec.job import MARKER, Command, JobRules, LogSpec, NodeSpec
from holdfast.spec.strategy import Strategy, parse_strategies
from holdfast.spec.taskd import MANAGER_PORT, MAX_RESTARTS, TASK_ID, process_enabled
from holdfast.spec.tls import CONFIG, SECRET_VARIABLES, TlsSpec, find_tls

STORE_PORT = 29500
SHUTDOWN_S = 30.0
DRAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A value with where it came from; None where nobody gave one and there is no default."""

    value: str | None
    source: str

    def whole(self, least: int, most: int | None = None) -> int:
        return int(self._number(int, least, most))

    def seconds(self) -> float:
        return self._number(float, 0, None)

    def _number(self, kind: Callable[[str], float], least: int, most: int | None) -> float:
        what = "a whole number" if kind is int else "a number"
        limits = f"{least} or more" if most is None else f"from {least} to {most}"
        try:
            number = kind(self.value or "")
        except ValueError:
            raise SpecError(self.source, self.value, f"it must be {what}, {limits}") from None
        if not least <= number or (most is not None and number > most):
            raise SpecError(self.source, self.value, f"it must be {what}, {limits}")
        return number


class Settings:
    """All flags, resolved."""

    def __init__(self, given: argparse.Namespace, env: Mapping[str, str]) -> None:
        self._settings = {flag.dest: _resolve(flag, getattr(given, flag.dest), env) for flag in FLAGS}

    def __getitem__(self, name: str) -> Setting:
        return self._settings[name]

    def text(self, name: str) -> str:
        return self[name].value or ""

    def on(self, name: str) -> bool:
        return self[name].value == "1"

    def given(self, name: str) -> bool:
        return self[name].value is not None and self[name].source != "default"


def _resolve(flag: Flag, given: str | bool | None, env: Mapping[str, str]) -> Setting:
    if given is not None:
        value, source = ("1" if given is True else str(given)), flag.name
    elif flag.variable and env.get(flag.env):
        value, source = env[flag.env], flag.env
        if flag.switch:
            value = "1" if Setting(value, source).whole(0) else "0"
    else:
        return Setting(flag.default or None, "default")
    if flag.choices and value not in flag.choices:
        raise SpecError(source, value, f"it must be one of {', '.join(flag.choices)}")
    return Setting(value, source)


def load_run(given: argparse.Namespace, env: Mapping[str, str] | None = None) -> tuple[NodeSpec, list[str]]:
    """The specification of this node, and notes for the person who asked."""
    env = dict(os.environ if env is None else env)
    marker = secrets.token_hex(8)
    settings = Settings(given, env)
    notes: list[str] = []
    command = _command(given, settings, env)
    num_workers = _num_workers(settings["nproc_per_node"])
    managed = process_enabled(env) is True
    rules = _rules(settings, env, notes, managed=managed)
    single = rules.max_nodes == 1
    host, port = _endpoint(settings, alone=single and not managed)
    omp = "1" if num_workers > 1 and "OMP_NUM_THREADS" not in env else None
    shutdown = _shutdown(settings, env)
    hang = _hang_limits(settings["hang_timeout"])
    warm, cold_reason = _start_method(settings, env)
    token = _token(settings, env)
    tls, tls_notes = find_tls(settings["tls_config"].value, env)
    notes += tls_notes
    store_port = _store_port(settings, single=single)
    node_rank = settings["node_rank"].whole(0, rules.max_nodes - 1) if settings.given("node_rank") else None
    notes += reach_notes(host, port, secret=token is not None or tls is not None)
    spec = NodeSpec(
        rules=rules,
        command=command,
        num_workers=num_workers,
        logs=_logs(settings, env, num_workers),
        role=settings.text("role"),
        node_rank=None if single else node_rank,
        host=host,
        port=port,
        managed=managed,
        store_port=store_port if single or node_rank in (0, None) else 0,
        local_addr=settings["local_addr"].value,
        token=token,
        tls=tls,
        warm=warm,
        cold_reason=cold_reason,
        drain_s=DRAIN_S if shutdown is None else shutdown,
        shutdown_s=SHUTDOWN_S if shutdown is None else shutdown,
        standby=settings["standby"].whole(0, 64),
        hang_floor_s=hang[0],
        hang_ceiling_s=hang[1],
        hang_asked=settings.given("hang_timeout") and hang[1] < math.inf,
        signals=_signals(settings["signals_to_handle"]),
        events_file=_writable(settings["events"]),
        marker=marker,
        virtual_local_rank=settings.on("virtual_local_rank"),
        numa_binding=settings["numa_binding"].value,
        omp_num_threads=omp,
        env=_worker_env(env, tls) | {MARKER: marker},
    )
    return spec, notes


def load_rules(given: Mapping[str, str], env: Mapping[str, str]) -> tuple[JobRules, list[str]]:
    """The rules of a job with a manager, from some flags by their names, and notes for the person who asked."""
    notes: list[str] = []
    settings = Settings(argparse.Namespace(**{flag.dest: given.get(flag.dest) for flag in FLAGS}), env)
    return _rules(settings, env, notes, managed=True), notes


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


def _worker_env(env: Mapping[str, str], tls: TlsSpec | None) -> dict[str, str]:
    """The user's environment without passwords; a script can still tell whether its job has a secure channel."""
    kept = {name: value for name, value in env.items() if name not in SECRET_VARIABLES}
    return kept if tls is None else {**kept, CONFIG: tls.config}


# --- the script -----------------------------------------------------------------------------------------------


def _command(given: argparse.Namespace, settings: Settings, env: Mapping[str, str]) -> Command:
    target, args = given.script, tuple(given.script_args)
    python = env.get("PYTHON_EXEC", sys.executable)
    if settings.on("run_path"):
        how = "run_path"
    elif settings.on("no_python") and settings.on("module"):
        raise SpecError("--no-python", "together with --module", "use one of the two")
    else:
        how = "program" if settings.on("no_python") else "module" if settings.on("module") else "script"
    if how in ("script", "run_path"):
        if not os.path.exists(target):
            raise SpecError("SCRIPT", target, "there is no such file")
        _check_syntax(Path(target))
    return Command(how=how, target=target, args=args, python=python)


def _check_syntax(path: Path) -> None:
    """A script that cannot be compiled would fail in every worker: say so once, before anything is started."""
    if not path.is_file() or path.suffix != ".py":
        return
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ScriptError(f"{path}, line {error.lineno}: {error.msg}\n    {(error.text or '').strip()}") from None
    except (OSError, ValueError) as error:
        raise SpecError("SCRIPT", str(path), f"it cannot be read: {error}") from error


class ScriptError(SpecError):
    """The script is there but is not Python."""

    exit_code = 1

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


def _start_method(settings: Settings, env: Mapping[str, str]) -> tuple[bool, str]:
    if settings.on("no_python") and not settings.on("run_path"):
        return False, ""
    if env.get("PYTHON_EXEC", sys.executable) != sys.executable:
        return False, "PYTHON_EXEC names another interpreter"
    return settings.text("start_method") != "spawn", ""


# --- nodes and workers ----------------------------------------------------------------------------------------


def _nodes(setting: Setting) -> tuple[int, int]:
    least, colon, most = (setting.value or "").partition(":")
    try:
        low, high = int(least), int(most if colon else least)
    except ValueError:
        raise SpecError(setting.source, setting.value, "it must be N or MIN:MAX, as in 2 or 2:4") from None
    if not 1 <= low <= high:
        raise SpecError(setting.source, setting.value, "MIN must be 1 or more and not above MAX")
    return low, high


def _num_workers(setting: Setting) -> int:
    value = setting.value or ""
    if value.lstrip("-").isdecimal():
        return setting.whole(1)
    if value == "cpu" or (value == "auto" and not _has_accelerator()):
        return os.cpu_count() or 1
    if value not in ("auto", "gpu", "xpu"):
        raise SpecError(setting.source, value, "it must be a number of 1 or more, or auto, cpu, gpu, xpu")
    module = {"gpu": "torch.cuda", "xpu": "torch.xpu"}.get(value, "torch.accelerator")
    # In a process of its own: once CUDA is initialised, a process and its forks are spoilt for the workers.
    code = f"import torch; m = {module}; print(m.device_count() if m.is_available() else 0)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    count = int(found.stdout.strip() or 0) if found.returncode == 0 else 0
    if count == 0:
        raise SpecError(setting.source, value, "there is no such device on this node; give a number, or cpu")
    return count


def _has_accelerator() -> bool:
    """Whether there can be one at all: asking torch costs seconds."""
    devices = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg", "/dev/dri/renderD128", "/dev/accel/accel0", "/dev/davinci0")
    return any(os.path.exists(device) for device in devices)


def _rules(settings: Settings, env: Mapping[str, str], notes: list[str], *, managed: bool) -> JobRules:
    low, high = _nodes(settings["nnodes"])
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
    shutdown = _shutdown(settings, env) or SHUTDOWN_S
    return JobRules(
        job_id=job_id,
        min_nodes=low,
        max_nodes=high,
        max_restarts=MAX_RESTARTS if unlimited else settings["max_restarts"].whole(0),
        strategies=_strategies(settings, env, notes),
        join_timeout_s=conf.get("join_timeout", 600.0),
        last_call_s=conf.get("last_call_timeout", 5.0),
        beat_s=beat_s,
        lease_s=beat_s * conf.get("keep_alive_max_attempt", 5.0),
        stop_timeout_s=shutdown + 30.0,
    )


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
    "last_call_timeout": "last_call_timeout",
    "lastcall_timeout": "last_call_timeout",
    "keep_alive_interval": "keep_alive_interval",
    "keep_alive_max_attempt": "keep_alive_max_attempt",
}


def _rendezvous_conf(setting: Setting, notes: list[str]) -> dict[str, float]:
    conf: dict[str, float] = {}
    for item in (setting.value or "").split(","):
        if not item.strip():
            continue
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise SpecError(setting.source, item, "it must be KEY=VALUE,KEY=VALUE")
        if key not in CONF_KEYS:
            notes.append(f"{setting.source}: {key} does nothing here")
            continue
        number = Setting(value, f"{setting.source} {key}").seconds()
        if key.startswith("keep_alive") and number <= 0:
            raise SpecError(f"{setting.source} {key}", value, "it must be above 0")
        conf[CONF_KEYS[key]] = number
    return conf


# --- addresses ------------------------------------------------------------------------------------------------


def _endpoint(settings: Settings, *, alone: bool) -> tuple[str, int]:
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


def _store_port(settings: Settings, *, single: bool) -> int:
    if settings.given("master_port"):
        return settings["master_port"].whole(0, 65535)
    by_endpoint = settings["rdzv_endpoint"].value is not None
    return 0 if single or by_endpoint else STORE_PORT


def token_from_environment(env: Mapping[str, str] | None = None) -> str | None:
    return (os.environ if env is None else env).get("HOLDFAST_TOKEN") or None


def _token(settings: Settings, env: Mapping[str, str]) -> str | None:
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


# --- output and the end ---------------------------------------------------------------------------------------


def _logs(settings: Settings, env: Mapping[str, str], num_workers: int) -> LogSpec:
    directory = settings["log_dir"]
    redirects, tee = _streams(settings["redirects"], num_workers), _streams(settings["tee"], num_workers)
    if directory.value is not None:
        if os.path.exists(directory.value) and not os.path.isdir(directory.value):
            raise SpecError(directory.source, directory.value, "it must be a directory")
        if not settings.given("redirects") and not settings.given("tee"):
            tee = dict.fromkeys(range(num_workers), 3)
    shown = settings["local_ranks_filter"]
    return LogSpec(
        log_dir=directory.value,
        redirects=redirects,
        tee=tee,
        shown_local_ranks=_local_ranks(shown) if shown.value else None,
        stdout_filters=_texts(settings["duplicate_stdout_filters"].value),
        stderr_filters=_texts(settings["duplicate_stderr_filters"].value),
        prefix_template=env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
    )


def _streams(setting: Setting, num_workers: int) -> dict[int, int]:
    value = setting.value or "0"
    if value in ("0", "1", "2", "3"):
        return dict.fromkeys(range(num_workers), int(value))
    streams: dict[int, int] = {}
    for item in value.split(","):
        rank, _, number = item.partition(":")
        if not rank.isdecimal() or number not in ("0", "1", "2", "3"):
            raise SpecError(setting.source, value, "it must be 0, 1, 2, 3 or a list by local rank such as 0:1,1:3")
        streams[int(rank)] = int(number)
    return streams


def _local_ranks(setting: Setting) -> tuple[int, ...]:
    items = (setting.value or "").split(",")
    if not all(item.strip().isdecimal() for item in items):
        raise SpecError(setting.source, setting.value, "it must be local ranks separated by commas, as in 0,2")
    return tuple(int(item) for item in items)


def _texts(value: str | None) -> tuple[str, ...]:
    if not value:
        return ()
    return tuple(part.replace("\0", ",") for part in value.replace(",,", "\0").split(","))


def _signals(setting: Setting) -> tuple[str, ...]:
    names = [name.strip() for name in (setting.value or "").split(",") if name.strip()]
    for name in names:
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise SpecError(setting.source, name, "it must be the name of a signal that can be handled, as SIGUSR1")
    return tuple(names)


def _shutdown(settings: Settings, env: Mapping[str, str]) -> float | None:
    if settings.given("shutdown_timeout"):
        return settings["shutdown_timeout"].seconds()
    if value := env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        return Setting(value, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT").seconds()
    return None


def _hang_limits(setting: Setting) -> tuple[float, float]:
    if setting.value == "off":
        return math.inf, math.inf
    least, colon, most = (setting.value or "").partition(":")
    floor, ceiling = Setting(least, setting.source).seconds(), Setting(most, setting.source).seconds() if colon else 0.0
    if not colon or not 0 < floor <= ceiling:
        raise SpecError(setting.source, setting.value, "it must be MIN:MAX in seconds with 0 < MIN <= MAX, or off")
    return floor, ceiling


def _writable(setting: Setting) -> str | None:
    if setting.value is None:
        return None
    path = os.path.abspath(setting.value)
    try:
        with open(path, "a"):
            pass
    except OSError as error:
        raise SpecError(setting.source, setting.value, f"it cannot be written: {error.strerror}") from error
    return path
