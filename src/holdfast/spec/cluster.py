"""The cluster that forms itself: what a process is told by its environment, when nobody launched it.

Every setting has a variable of our own and, where there is one, that of MindSpore's dynamic cluster; ours wins, and
says so.
"""

from __future__ import annotations

import ipaddress
import math
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.errors import SpecError
from holdfast.spec.job import RANK_TABLE, REJECTION_WINDOW, SERVER_PREFIX
from holdfast.spec.rank_table import BadTable, read_rank_table
from holdfast.spec.tls import CONFIG, TlsSpec, find_tls
from holdfast.spec.variables import DEFAULT, Found, Reader, Variable


class Role(StrEnum):
    SCHEDULER = "scheduler"
    WORKER = "worker"
    SERVER = "server"


ROLES = {
    "scheduler": Role.SCHEDULER,
    "MS_SCHED": Role.SCHEDULER,
    "worker": Role.WORKER,
    "MS_WORKER": Role.WORKER,
    "server": Role.SERVER,
    "MS_PSERVER": Role.SERVER,
    "MS_SERVER": Role.SERVER,
}
SWITCH = {"0": False, "1": True}

VARIABLES = {
    "role": Variable(
        "HOLDFAST_ROLE", "MS_ROLE", None, "`scheduler`, `worker` or `server` (`MS_SCHED`, `MS_WORKER`, `MS_PSERVER`)"
    ),
    "host": Variable("HOLDFAST_SCHED_HOST", "MS_SCHED_HOST", None, "address of the scheduler, IPv4 or IPv6"),
    "port": Variable("HOLDFAST_SCHED_PORT", "MS_SCHED_PORT", None, "port of the scheduler, 1024 to 65535"),
    "num_workers": Variable("HOLDFAST_WORKER_NUM", "MS_WORKER_NUM", None, "how many workers the cluster has"),
    "num_servers": Variable("HOLDFAST_SERVER_NUM", "MS_SERVER_NUM", "0", "how many parameter servers it has"),
    "node_id": Variable(
        "HOLDFAST_NODE_ID", "MS_NODE_ID", "", "name of this process, unique in its role; a number is its rank"
    ),
    "worker_ip": Variable(
        "HOLDFAST_WORKER_IP",
        "MS_WORKER_IP",
        "",
        "address of this machine that the process uses; found by itself, but required with IPv6 other than `::1`",
    ),
    "recovery": Variable("HOLDFAST_ENABLE_RECOVERY", "MS_ENABLE_RECOVERY", "0", "`1`: lost processes may come back"),
    "recovery_path": Variable(
        "HOLDFAST_RECOVERY_PATH", "MS_RECOVERY_PATH", "", "where the scheduler keeps its state; made if missing"
    ),
    "topo_timeout": Variable(
        "HOLDFAST_TOPO_TIMEOUT",
        "MS_TOPO_TIMEOUT",
        "1800",
        "seconds for all to come, then every process ends and says who is missing; negative: no limit",
    ),
    "node_timeout": Variable(
        "HOLDFAST_NODE_TIMEOUT",
        "MS_NODE_TIMEOUT",
        "30",
        "seconds of silence after which a process is taken for lost; negative: no limit",
    ),
    "receive_timeout": Variable(
        "HOLDFAST_RECEIVE_MSG_TIMEOUT",
        "MS_RECEIVE_MSG_TIMEOUT",
        "300",
        "seconds to wait for an answer of a scheduler that is connected, then it is dialled again; negative: no limit",
    ),
    "retry_lower": Variable(
        "HOLDFAST_RETRY_INTERVAL_LOWER",
        "MS_RETRY_INTERVAL_LOWER",
        "3",
        "least seconds between two heartbeats, and between two tries to connect again",
    ),
    "retry_upper": Variable(
        "HOLDFAST_RETRY_INTERVAL_UPPER",
        "MS_RETRY_INTERVAL_UPPER",
        "5",
        "most seconds between them, at most a third of the node timeout; each gap is drawn at random",
    ),
    "heartbeat_off": Variable(
        "HOLDFAST_DISABLE_HEARTBEAT",
        "MS_DISABLE_HEARTBEAT",
        "0",
        "`1`: once the cluster is formed, nobody is taken for lost, as when a debugger holds a process",
    ),
    "rejection_window": Variable(
        REJECTION_WINDOW,
        "",
        "30",
        "seconds since the last sign of life of a process in which another one with its id has to wait",
    ),
    "rank_table": Variable(
        RANK_TABLE,
        "RANK_TABLE_FILE",
        "",
        "JSON file, read by the scheduler, that says who has which rank",
    ),
    "log_dir": Variable(
        "HOLDFAST_LOG_DIR", "", "", "directory for the output of this process, in a file named `ROLE_ID.log`"
    ),
    "tls": Variable(CONFIG, "", "", "file that turns [TLS](tls.md) on; passwords have variables of their own"),
    "lccl": Variable("HOLDFAST_ENABLE_LCCL", "MS_ENABLE_LCCL", "0", "accepted, but does nothing here"),
}

AGREED = ("num_workers", "num_servers", "recovery", "topo_timeout", "node_timeout", "heartbeat_off")
"""What every process has to be told alike."""

MOST_OF_NODE_TIMEOUT = 1 / 3
"""A heartbeat may be as late as two tries to connect and not be missed."""
MAX_COUNT = 1 << 20
MAX_ID_BYTES = 200
"""The id is part of a file's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec:
    """One process's place in a cluster."""

    role: Role
    host: str
    port: int
    node_id: str
    num_workers: int
    num_servers: int
    worker_ip: str
    """Empty: the address from which the scheduler is reached."""
    recovery: bool
    recovery_path: str
    topo_timeout_s: float
    node_timeout_s: float
    receive_timeout_s: float
    retry_s: tuple[float, float]
    """The bounds of every gap between heartbeats, and between tries to connect."""
    heartbeat: bool
    rejection_window_s: float
    rank_table: dict[str, tuple[int, ...]] = field(default_factory=dict)
    log_dir: str
    agreed: dict[str, str]
    """What every process has to be told alike, by our name of the variable."""
    tls: TlsSpec | None = None
    notes: tuple[str, ...] = ()
    """What a person should know about how the settings were found."""

    @property
    def rank(self) -> int | None:
        """The rank that this process asks for."""
        return int(self.node_id) if self.node_id.isdecimal() else None


NAMELESS = (
    f"{VARIABLES['node_id'].names} is not set: another process gets the place of this one only when its loss is known"
)


def load_cluster(env: Mapping[str, str] | None = None, *, tls_config: str | None = None) -> ClusterSpec | None:
    """The cluster this process belongs to; None if no role is set. TLS is as given here, or else by its variable."""
    reader = Reader(VARIABLES, os.environ if env is None else env)
    spec = _resolve(reader, tls_config=tls_config)
    if spec is not None:
        for name in ("recovery_path", "log_dir"):
            if getattr(spec, name):
                reader.make_directory(name)
    return spec


def _resolve(reader: Reader, *, tls_config: str | None = None) -> ClusterSpec | None:
    if not reader.is_set("role"):
        return None
    role, host = reader.choice("role", ROLES), reader.address("host")
    recovery = reader.choice("recovery", SWITCH)
    if recovery and not reader.text("recovery_path"):
        raise reader.refuse("recovery_path", "with recovery on, it must name a directory")
    num_workers, num_servers = reader.whole("num_workers", 1, MAX_COUNT), reader.whole("num_servers", 0, MAX_COUNT)
    if role is Role.SERVER and not num_servers:
        raise reader.refuse("num_servers", "a cluster with a process in the role server has at least 1")
    node_id = _node_id(reader)
    if role is Role.WORKER and num_servers and node_id.startswith(SERVER_PREFIX):
        raise reader.refuse("node_id", f"ids that begin with {SERVER_PREFIX!r} are those of servers")
    node_timeout_s = reader.timeout("node_timeout")
    retry_s, retry_note = _retry_interval(reader, node_timeout_s)
    table, table_note = _rank_table(reader, num_workers) if role is Role.SCHEDULER else ({}, "")
    lccl = reader.find("lccl")
    lccl_note = f"{lccl.source}=1 does nothing here: there is no LCCL" if lccl.value == "1" else ""
    tls, tls_notes = find_tls(tls_config, reader.env, source="holdfast.init(tls=...)")
    is_nameless = recovery and role is not Role.SCHEDULER and not node_id
    notes = (*reader.notes(), retry_note, table_note, lccl_note, NAMELESS if is_nameless else "", *tls_notes)
    return ClusterSpec(
        role=role,
        host=host,
        port=reader.whole("port", 1024, 65535),
        node_id=node_id or f"node-{uuid.uuid4().hex[:8]}",
        num_workers=num_workers,
        num_servers=num_servers,
        worker_ip=_worker_ip(reader, host) if role is not Role.SCHEDULER else "",
        recovery=recovery,
        recovery_path=os.path.abspath(reader.text("recovery_path")) if recovery else "",
        topo_timeout_s=reader.timeout("topo_timeout"),
        node_timeout_s=node_timeout_s,
        receive_timeout_s=reader.timeout("receive_timeout"),
        retry_s=retry_s,
        heartbeat=not reader.choice("heartbeat_off", SWITCH),
        rejection_window_s=reader.seconds("rejection_window", may_be_0=True),
        rank_table=table,
        log_dir=reader.text("log_dir"),
        agreed={VARIABLES[name].ours: _plain(reader.text(name)) for name in AGREED},
        tls=tls,
        notes=tuple(note for note in notes if note),
    )


def explain_cluster(env: Mapping[str, str] | None = None) -> tuple[dict[str, Found], tuple[str, ...]]:
    """Every setting as this process would use it, by our name of its variable, and the notes that it would print;
    nothing if no role is set.

    A bad value raises as it would there, but no directory is made. Only what the table lists is told, which has no
    secrets.
    """
    reader = Reader(VARIABLES, os.environ if env is None else env)
    spec = _resolve(reader)
    if spec is None:
        return {}, ()
    found = {variable.ours: reader.find(name) for name, variable in VARIABLES.items()}
    for name, used_s in zip(("retry_lower", "retry_upper"), spec.retry_s, strict=True):
        if used_s != float(reader.text(name)):
            source = f"{DEFAULT}, shortened to fit {VARIABLES['node_timeout'].ours}"
            found[VARIABLES[name].ours] = Found(f"{used_s:g}", source)
    if not reader.text("node_id"):
        found[VARIABLES["node_id"].ours] = Found("(made up at each start)", DEFAULT)
    return found, spec.notes


def _retry_interval(reader: Reader, node_timeout_s: float) -> tuple[tuple[float, float], str]:
    lower_s, upper_s = reader.seconds("retry_lower"), reader.seconds("retry_upper")
    names = f"{VARIABLES['retry_lower'].ours}={lower_s:g} and {VARIABLES['retry_upper'].ours}={upper_s:g}"
    if lower_s > upper_s:
        raise reader.refuse("retry_lower", f"it must not be above the upper bound: {names}")
    most_s = node_timeout_s * MOST_OF_NODE_TIMEOUT
    if upper_s <= most_s:
        return (lower_s, upper_s), ""
    if reader.is_set("retry_lower") or reader.is_set("retry_upper"):
        limit = f"{most_s:g} s, a third of {VARIABLES['node_timeout'].ours}={node_timeout_s:g}"
        raise reader.refuse("retry_upper", f"heartbeats so rare would be missed: it must be at most {limit}")
    shorter_s = (lower_s * most_s / upper_s, most_s)
    return shorter_s, (
        f"heartbeats come every {shorter_s[0]:.2g} to {shorter_s[1]:.2g} s, not {lower_s:g} to {upper_s:g}: "
        f"a node timeout of {node_timeout_s:g} s needs that"
    )


def _rank_table(reader: Reader, num_workers: int) -> tuple[dict[str, tuple[int, ...]], str]:
    found = reader.find("rank_table")
    if not found.value:
        return {}, ""
    try:
        return read_rank_table(found.value, num_workers=num_workers), ""
    except BadTable as error:
        return {}, f"warning: {found.source}={found.value} is not used, ranks are given automatically: {error}"


def _node_id(reader: Reader) -> str:
    node_id = reader.text("node_id")
    size = len(node_id.encode(errors="surrogateescape"))
    if size > MAX_ID_BYTES or not node_id.isprintable():
        raise reader.refuse("node_id", f"it must be printable text of at most {MAX_ID_BYTES} bytes")
    if node_id.isdecimal() and int(node_id) >= MAX_COUNT:
        raise reader.refuse("node_id", f"a number is a rank: it must be below {MAX_COUNT}")
    return node_id


def _worker_ip(reader: Reader, host: str) -> str:
    scheduler = ipaddress.ip_address(host)
    if not reader.text("worker_ip"):
        if scheduler.version == 6 and not scheduler.is_loopback:
            names = VARIABLES["worker_ip"].names
            raise SpecError(names, "", f"it must be set where the scheduler has an IPv6 address other than ::1: {host}")
        return ""
    address = reader.address("worker_ip")
    if ipaddress.ip_address(address).version != scheduler.version:
        raise reader.refuse("worker_ip", f"it must be an IPv{scheduler.version} address, as the scheduler's {host} is")
    return address


def _plain(number: str) -> str:
    """One spelling for each number."""
    value = float(number)
    return "no limit" if value < 0 or math.isinf(value) else f"{value:g}"
