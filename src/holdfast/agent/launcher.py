"""Starting the workers of one world on this node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from holdfast.agent import requests
from holdfast.agent.console import Console
from holdfast.agent.environment import worker_env
from holdfast.agent.interpreter import Interpreter
from holdfast.agent.logs import ERR, OUT, line_prefix, route
from holdfast.core import workers as core
from holdfast.core.ids import Placement, World
from holdfast.spec.job import NodeSpec
from holdfast.spec.worker import STANDBY


class Launcher:
    """Turns a world into requests to the interpreter."""

    def __init__(self, spec: NodeSpec, *, console: Console, interpreter: Interpreter, logs: Path) -> None:
        self._spec = spec
        self._console = console
        self._interpreter = interpreter
        self._logs = logs
        self.agent_socket = logs / "agent.sock"

    def error_file(self, restart_count: int, local_rank: int) -> Path:
        return self._directory(restart_count, local_rank) / "error.json"

    def launch(self, action: core.Launch, store: socket.socket | None) -> None:
        """Ask for the store, if it is ours to serve and is not there yet, and for each of these workers."""
        world, placement = action.world, action.placement
        if store is not None and action.with_store:
            self._interpreter.serve_store(requests.Store(world.generation, world.store.port), store)
        for local_rank in action.local_ranks:
            self._start(world, placement, local_rank)

    def start_standby(self, world: World, placement: Placement, slot: int) -> None:
        """Start a worker without a rank, in a slot above those of the ranks."""
        self._start(world, placement, slot, {STANDBY: "1"})

    def beacon(self, slot: int) -> Path:
        return self._logs / f"beacon_{slot}"

    def _start(
        self, world: World, placement: Placement, local_rank: int, extra: Mapping[str, str] | None = None
    ) -> None:
        spec = self._spec
        directory = self._directory(world.restart_count, local_rank)
        directory.mkdir(parents=True, exist_ok=True)
        error_file = directory / "error.json"
        for leftover in (error_file, error_file.with_name(error_file.name + ".crash")):
            leftover.unlink(missing_ok=True)
        beacon = self.beacon(local_rank)
        beacon.unlink(missing_ok=True)
        env = worker_env(spec, world, placement, local_rank=local_rank, agent=self.agent_socket, beacon=beacon)
        env["TORCHELASTIC_ERROR_FILE"] = str(error_file)
        env |= extra or {}
        sinks = {stream: self._sink(stream, directory, placement, local_rank) for stream in (OUT, ERR)}
        request = requests.Fork(
            local_rank,
            env,
            str(error_file),
            sinks[OUT] is not None,
            sinks[ERR] is not None,
        )
        fds = [fd for fd in (sinks[OUT], sinks[ERR]) if fd is not None]
        self._interpreter.fork(request, fds)
        for fd in fds:
            os.close(fd)

    def _sink(self, stream: int, directory: Path, placement: Placement, local_rank: int) -> int | None:
        """A descriptor for the worker's stream; None where it simply inherits ours."""
        spec, console = self._spec, self._console
        to = route(spec.logs, stream=stream, local_rank=local_rank, directory=directory)
        terminal = to.shown and console.is_terminal[stream]
        filters = spec.logs.stdout_filters if stream == OUT else spec.logs.stderr_filters
        if not (to.copied or terminal or filters):
            if to.shown:
                return None
            return os.open(to.file or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        rank = placement.first_rank + local_rank
        prefix = line_prefix(spec.logs, role=spec.role, rank=rank, local_rank=local_rank)
        return console.open_stream(
            target=stream if to.shown else None,
            prefix=f"{prefix}" if to.copied else f"[{rank}] " if terminal else "",
            file=to.file,
            filtered=directory.parent / f"filtered_{'stdout' if stream == OUT else 'stderr'}.log",
            filters=filters,
        )

    def _directory(self, restart_count: int, local_rank: int) -> Path:
        return self._logs / f"attempt_{restart_count}" / str(local_rank)
