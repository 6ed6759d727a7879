"""From flags and variables to a frozen specification.

Every error names what was given and what would be valid.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping

from holdfast.errors import SpecError
from holdfast.spec.flags import FLAGS
from holdfast.spec.job import MARKER, JobRules, NodeSpec
from holdfast.spec.logs import find_logs
from holdfast.spec.reach import find_endpoint, find_store_port, find_token, reach_notes
from holdfast.spec.rules import SHUTDOWN_S, find_rules, find_shutdown
from holdfast.spec.script import find_command, find_start_method
from holdfast.spec.settings import Setting, Settings
from holdfast.spec.taskd import process_enabled
from holdfast.spec.tls import CONFIG, SECRET_VARIABLES, TlsSpec, find_tls

DRAIN_S = 5.0


def load_run(given: argparse.Namespace, env: Mapping[str, str] | None = None) -> tuple[NodeSpec, list[str]]:
    """The specification of this node, and notes for the person who asked."""
    env = dict(os.environ if env is None else env)
    marker = secrets.token_hex(8)
    settings = Settings(given, env)
    notes: list[str] = []
    command = find_command(given, settings, env)
    num_workers = _num_workers(settings["nproc_per_node"])
    by_taskd = process_enabled(env) is True
    managed = by_taskd or settings.on("no_master")
    rules = find_rules(settings, env, notes, managed=by_taskd)
    single = rules.max_nodes == 1
    host, port = find_endpoint(settings, alone=single and not managed)
    omp = "1" if num_workers > 1 and "OMP_NUM_THREADS" not in env else None
    shutdown = find_shutdown(settings, env)
    hang = parse_hang_limits(settings["hang_timeout"])
    warm, cold_reason = find_start_method(settings, env)
    token = find_token(settings, env)
    tls, tls_notes = find_tls(settings["tls_config"].value, env)
    notes += tls_notes
    store_port = find_store_port(settings, single=single)
    node_rank = settings["node_rank"].whole(0, rules.max_nodes - 1) if settings.given("node_rank") else None
    notes += reach_notes(host, port, secret=token is not None or tls is not None)
    spec = NodeSpec(
        rules=rules,
        command=command,
        num_workers=num_workers,
        logs=find_logs(settings, env, num_workers),
        role=settings.text("role"),
        node_name=settings["node_name"].value,
        node_rank=None if single else node_rank,
        host=host,
        port=port,
        managed=managed,
        never_master=settings.on("no_master"),
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
        events_file=writable(settings["events"]),
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
    return find_rules(settings, env, notes, managed=True), notes


def _worker_env(env: Mapping[str, str], tls: TlsSpec | None) -> dict[str, str]:
    """The user's environment without passwords; a script can still tell whether its job has a secure channel."""
    kept = {name: value for name, value in env.items() if name not in SECRET_VARIABLES}
    return kept if tls is None else {**kept, CONFIG: tls.config}


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


def _signals(setting: Setting) -> tuple[str, ...]:
    names = [name.strip() for name in (setting.value or "").split(",") if name.strip()]
    for name in names:
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise SpecError(setting.source, name, "it must be the name of a signal that can be handled, as SIGUSR1")
    return tuple(names)


def parse_hang_limits(setting: Setting) -> tuple[float, float]:
    if setting.value == "off":
        return math.inf, math.inf
    least, colon, most = (setting.value or "").partition(":")
    floor, ceiling = Setting(least, setting.source).seconds(), Setting(most, setting.source).seconds() if colon else 0.0
    if not colon or not 0 < floor <= ceiling:
        raise SpecError(setting.source, setting.value, "it must be MIN:MAX in seconds with 0 < MIN <= MAX, or off")
    return floor, ceiling


def writable(setting: Setting) -> str | None:
    """The path of a file that can be written to; it is there afterwards."""
    if setting.value is None:
        return None
    path = os.path.abspath(setting.value)
    try:
        with open(path, "a"):
            pass
    except OSError as error:
        raise SpecError(setting.source, setting.value, f"it cannot be written: {error.strerror}") from error
    return path
