"""Whom a fault strikes: `node:NAME`, `rank:N`, `role:ROLE/INDEX`, `agent:NAME`, `master` or `any`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

from holdfast.chaos.api import Process, Target
from holdfast.chaos.jobs import JobHandle, JobView, NodeView
from holdfast.chaos.pids import identify, marks_of, struck
from holdfast.errors import JobError, SpecError

__all__ = ["SELECTORS", "Target", "find", "target_of"]

SELECTORS = ("node:NAME", "rank:N", "role:ROLE/INDEX", "agent:NAME", "master", "any")
FLAG = "--target"


def find(job: JobHandle, selector: str) -> Target:
    """The part of a job that a selector means, as it is now."""
    view = job.look()
    kind, _, what = selector.partition(":")
    match kind:
        case "master" if not what:
            return _master(view, selector)
        case "any" if not what:
            return _worker(*random.Random(job.seed).choice(_workers(view)))
        case "rank" if what.isdecimal():
            return _rank(view, selector, int(what))
        case "node" | "agent" if what:
            return (_node if kind == "node" else _agent)(_named(view, selector, what))
        case "role" if what.rpartition("/")[2].isdecimal():
            return _node(_placed(view, selector, what))
    raise SpecError(FLAG, selector, f"it must be one of {', '.join(SELECTORS)}")


def target_of(*pids: int, name: str = "", directory: str = "") -> Target:
    """Processes of one's own, that are in no job."""
    processes = tuple(_process(pid, f"process {pid}") for pid in pids)
    name = name or f"process {', '.join(map(str, pids))}"
    return Target(name=name, processes=processes, network=_network(processes[0]), directory=directory)


def _master(view: JobView, selector: str) -> Target:
    _refuse_several(view, selector)
    return Target(name="the master", processes=(_process(view.master_pid(), "the master"),))


def _rank(view: JobView, selector: str, rank: int) -> Target:
    _refuse_several(view, selector)
    for each, node in _workers(view):
        if each == rank:
            return _worker(rank, node)
    raise SpecError(FLAG, selector, f"it must be a rank that runs: {_list(rank for rank, _ in _workers(view))}")


def _worker(rank: int, node: NodeView) -> Target:
    worker = _process(node.workers[rank], f"rank {rank}")
    return _target(node, f"rank {rank} on {node.name}", (worker,))


def _refuse_several(view: JobView, selector: str) -> None:
    if view.has_several_roles:
        raise SpecError(FLAG, selector, "each role has its own; it must be role:ROLE/INDEX, node:NAME or agent:NAME")


def _node(node: NodeView) -> Target:
    whole = _target(node, node.name, (_process(node.root_pid, node.name),), is_whole_node=True)
    return _target(node, node.name, tuple(struck(whole)), is_whole_node=True)


def _agent(node: NodeView) -> Target:
    if node.agent_pid is None:
        raise JobError(f"the agent of {node.name} has not joined the job yet")
    name = f"the agent of {node.name}"
    return _target(node, name, (_process(node.agent_pid, name),))


def _target(node: NodeView, name: str, processes: tuple[Process, ...], *, is_whole_node: bool = False) -> Target:
    root = _process(node.root_pid, node.name)
    known = (root.pid, *([node.agent_pid] if node.agent_pid else []), *node.workers.values())
    return Target(
        name=name,
        node=node.name,
        processes=processes,
        is_whole_node=is_whole_node,
        root=root,
        agent=None if node.agent_pid is None else identify(node.agent_pid),
        network=_network(root),
        cgroups=node.cgroups,
        directory=node.directory,
        memory_bytes=node.memory_bytes,
        marks=marks_of(known),
    )


def _named(view: JobView, selector: str, name: str) -> NodeView:
    for node in view.nodes:
        if node.name == name:
            return node
    raise SpecError(FLAG, selector, f"it must be a node that runs: {_list(node.name for node in view.nodes)}")


def _placed(view: JobView, selector: str, what: str) -> NodeView:
    role, _, index = what.rpartition("/")
    if any(node.role is None for node in view.nodes):
        raise SpecError(FLAG, selector, "only submitted jobs tell their roles; say node:NAME or rank:N")
    for node in view.nodes:
        if role == node.role and node.place == int(index):
            return node
    places = _list(f"role:{node.role}/{node.place}" for node in view.nodes)
    raise SpecError(FLAG, selector, f"it must be one that runs: {places}")


def _workers(view: JobView) -> list[tuple[int, NodeView]]:
    """Every rank that runs, in order, with its node."""
    found = sorted(((rank, node) for node in view.nodes for rank in node.workers), key=lambda each: each[0])
    if not found:
        raise JobError("no worker of the job runs now")
    return found


def _process(pid: int, name: str) -> Process:
    if (found := identify(pid)) is None:
        raise JobError(f"{name} (pid {pid}) is not on this machine, or is gone")
    return found


def _network(process: Process) -> Process | None:
    """The process, if it has a network other than ours."""
    try:
        theirs, ours = (Path(f"/proc/{pid}/ns/net").readlink() for pid in (process.pid, os.getpid()))
    except OSError:
        return None
    return process if theirs != ours else None


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"
