"""Jobs that run on this machine, and where their processes are: asked of the job itself, or read from its events."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.agent.asking import ask
from holdfast.agent.processes import children_of, descendants
from holdfast.chaos.pids import command_line, parent_of, variables_of
from holdfast.errors import JobError, SpecError
from holdfast.spec.job import MARKER
from holdfast.submission.client import RunningJob, find_job
from holdfast.wire.identity import machine_id

MASTER = "holdfast.master.main"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """A node as it is now."""

    name: str
    place: int | None
    """Its rank among the nodes of its role."""
    role: str | None = None
    """None where it is not told."""
    root_pid: int
    """Its first process."""
    agent_pid: int | None
    """None while it has not joined."""
    workers: dict[int, int] = field(default_factory=dict)
    """Process id by rank."""
    cgroups: dict[str, str] = field(default_factory=dict)
    directory: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    nodes: tuple[NodeView, ...]
    hosts: tuple[int, ...]
    """Processes one of which has the master for a child."""

    @property
    def has_several_roles(self) -> bool:
        """Then ranks repeat, and there are several masters."""
        return len({node.role for node in self.nodes}) > 1

    def master_pid(self) -> int:
        for host in self.hosts:
            for child in children_of(host):
                if MASTER in command_line(child):
                    return child
        raise JobError("the master is not on this machine, or is being started again")


class JobHandle(ABC):
    """A job that faults can be put into."""

    def __init__(self, name: str, *, seed: int = 0) -> None:
        self.name = name
        self.seed = seed
        """Decides what `any` means."""

    @abstractmethod
    def look(self) -> JobView:
        """How it is now."""


def open_job(text: str | None = None, *, seed: int = 0) -> JobHandle:
    """A job by its name, id or directory (submitted), HOST:PORT of its master, or its events file."""
    if text is not None and Path(text).is_file():
        return RecordedJob(text, seed=seed)
    if text is not None and text.rpartition(":")[2].isdecimal() and ":" in text:
        return ServedJob(text, seed=seed)
    try:
        return SubmittedJob(find_job(Path(text).name if text is not None and Path(text).is_dir() else text), seed=seed)
    except JobError as error:
        if text is None:
            raise JobError(
                f"{error}; a job of holdfast run is named with --job HOST:PORT, or --job EVENTS_FILE"
            ) from None
        valid = "it must be a submitted job's name, id or directory, HOST:PORT of a master, or an events file"
        raise SpecError("--job", text, f"{valid}; {str(error).partition('; ')[2] or error}") from None


class SubmittedJob(JobHandle):
    def __init__(self, job: RunningJob, *, seed: int = 0) -> None:
        super().__init__(job.job_id, seed=seed)
        self._job = job

    def look(self) -> JobView:
        told = self._job.ask("GET", "/job")
        workers: dict[str, dict[int, int]] = {}
        for role in told.get("roles", [told]):
            workers |= _workers(role["master"] or {})
        running = [node for node in self._job.ask("GET", "/nodes") if node["state"] == "running" and node["pid"]]
        nodes = tuple(
            NodeView(
                name=node["name"],
                place=node["rank"],
                role=node.get("role", told.get("role")),
                root_pid=node["pid"],
                agent_pid=node["agent_pid"],
                workers=workers.get(node["name"], {}),
                cgroups=node["cgroups"],
                directory=node["directory"],
                memory_bytes=node["memory_bytes"],
            )
            for node in running
        )
        return JobView(nodes, tuple({parent_of(node.root_pid) for node in nodes}))


class ServedJob(JobHandle):
    """A job of `holdfast run`, by its master."""

    def look(self) -> JobView:
        told = ask(self.name, "/api/job")
        places = {each["node"]: each["group_rank"] for each in (told["world"] or {}).get("placements", ())}
        workers = _workers(told)
        return _plain_view(
            (name, None, places.get(name), node["pid"], workers.get(name, {}))
            for name, node in told["nodes"].items()
            if node["pid_space"] == machine_id()
        )


class RecordedJob(JobHandle):
    """A job by its events file, from the beginning of the job on."""

    def look(self) -> JobView:
        agents: dict[str, int] = {}
        roles: dict[str, str | None] = {}
        places: dict[str | None, dict[str, int]] = {}
        workers: dict[str, dict[int, int]] = {}
        for entry in map(json.loads, Path(self.name).read_text().rpartition("\n")[0].splitlines()):
            match entry["kind"]:
                case "node_joined" if entry.get("pid_space") == machine_id():
                    agents[entry["node"]], roles[entry["node"]] = entry["pid"], entry.get("role")
                case "node_joined" | "node_lost" | "node_left":
                    agents.pop(entry["node"], None)
                case "job_finished":
                    agents = {name: pid for name, pid in agents.items() if roles[name] != entry.get("role")}
                case "world_formed":
                    placements = {each["node"]: each["group_rank"] for each in entry["placements"]}
                    places[entry.get("role")] = placements
                case "workers_started":
                    known = workers.setdefault(entry["node"], {})
                    known |= {int(rank): pid for rank, pid in entry["pids"].items()}
        return _plain_view(
            (name, role := roles[name], places.get(role, {}).get(name), pid, workers.get(name, {}))
            for name, pid in agents.items()
        )


def _plain_view(found: Iterable[tuple[str, str | None, int | None, int, dict[int, int]]]) -> JobView:
    """Of a job whose nodes are known by their agents; an id that is another process's by now counts for nothing."""
    nodes = tuple(
        NodeView(
            name=name,
            role=role,
            place=place,
            root_pid=parent_of(agent) if is_guarded(agent) else agent,
            agent_pid=agent,
            workers=_below(agent, workers),
            directory=_cwd(agent),
        )
        for name, role, place, agent, workers in found
        if is_agent(agent)
    )
    if not nodes:
        raise JobError("no node of the job is on this machine, or all are gone")
    return JobView(nodes, tuple(node.agent_pid for node in nodes if node.agent_pid is not None))


def is_agent(pid: int) -> bool:
    """Whether it has started the processes of a node: these carry a mark that it does not carry itself."""
    own = variables_of(pid, [MARKER])
    return any(mark and mark != own for mark in (variables_of(child, [MARKER]) for child in children_of(pid)))


def is_guarded(agent: int) -> bool:
    """Whether an agent's parent is the process of which it is a fork."""
    return command_line(parent_of(agent)) == command_line(agent)


def _below(agent: int, workers: dict[int, int]) -> dict[int, int]:
    known = set(descendants(agent))
    return {rank: pid for rank, pid in workers.items() if pid in known}


def _workers(master: dict[str, Any]) -> dict[str, dict[int, int]]:
    """Process ids by rank, by node, from what a master tells."""
    found = {}
    for placement in (master.get("world") or {}).get("placements", ()):
        node = master["nodes"].get(placement["node"])
        pids = node["status"]["pids"] if node else []
        found[placement["node"]] = {placement["first_rank"] + local: pid for local, pid in enumerate(pids) if pid}
    return found


def _cwd(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""
