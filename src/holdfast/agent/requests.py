"""What the agent and its warm interpreter say to each other, over a socket pair that carries descriptors too."""

from __future__ import annotations

import msgspec

from holdfast.spec.job import Command

MAX_BYTES = 1 << 20
ASKED_FOR = "asked for"
"""The reason of a cold start that nobody has to be told."""
NO_TORCH = 96
"""Exit code of a store that has nothing to serve with: a job without torch needs none."""


class Settings(msgspec.Struct, frozen=True):
    """What all workers have in common. It may be large, so it comes in a memory file and not over the socket."""

    warm: bool
    cold_reason: str
    command: Command
    env: dict[str, str]
    marker: str
    numa_binding: str | None


class Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Fork(Message, frozen=True):
    """Start a worker; descriptors for its standard output and error come along where it does not inherit ours."""

    local_rank: int
    env: dict[str, str]
    error_file: str
    has_stdout: bool
    has_stderr: bool


class Store(Message, frozen=True):
    """Start a store that serves on the descriptor that comes along."""

    generation: int
    port: int
    listen_fd: int = -1


class Signal(Message, frozen=True):
    number: int


class Sweep(Message, frozen=True):
    pass


class Probe(Message, frozen=True):
    """Start the probe of a check. Descriptors come along: of a listener where it may serve a store, of a pipe to tell
    results to, and of one to be told of tests by."""

    check_id: int
    round: int
    address: str
    num_threads: int

    def argv(self, python: str, fds: tuple[int, ...]) -> list[str]:
        """How it is started cold, and what `ps` shows in any case."""
        words = (self.check_id, self.round, self.address, self.num_threads, *fds)
        return [python, "-u", "-P", "-m", "holdfast.agent.probe", *map(str, words)]


Request = Fork | Store | Signal | Sweep | Probe


class Ready(Message, frozen=True):
    """Workers can be started now; a reason says why they will be started cold."""

    cold_reason: str
    has_torch: bool


class Started(Message, frozen=True):
    local_rank: int
    pid: int


class Exited(Message, frozen=True):
    pid: int
    code: int
    """Negative: the signal that ended it."""


class StoreExited(Message, frozen=True):
    generation: int
    code: int


class ProbeStarted(Message, frozen=True):
    check_id: int
    round: int
    pid: int


class ProbeExited(Message, frozen=True):
    pid: int
    code: int
    """Negative: the signal that ended it."""


class Swept(Message, frozen=True):
    clean: bool


Reply = Ready | Started | Exited | StoreExited | ProbeStarted | ProbeExited | Swept
