"""The communicators of one generation: built, severed from another thread, and dropped.

gloo cannot be interrupted: `abort()` does nothing, and a collective whose peer is silent blocks until its timeout.
What does unblock it is the end of its connections. So we remember which sockets appeared while the group was
built, and shut them down when the generation is over. Its listening socket must not be touched: gloo ends the
process then.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import termios
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from holdfast.core.ids import Address
from holdfast.sdk import stores
from holdfast.sdk.subgroups import Subgroups
from holdfast.wire import threads

CONNECT_S = 2.0
CONNECT_PER_RANK_S = 0.05
"""For ranks that are all there to connect; gloo waits five times as long. Whoever waits for a peer to connect to it has
no socket yet that could be shut: should that peer die just then, nothing but this ends the wait."""

SETTLE_S = 0.01
MAX_SETTLE_S = 0.05
SEND_BUFFER_BYTES = 4 << 20
"""gloo writes at most 1 MiB of a collective at a time, and two of those at once. What the kernel takes at once is
sent; a write that is cut short when its connection ends is never reported, and who waits for it waits for good."""
SO_SNDBUFFORCE = 32
"""As SO_SNDBUF, beyond the system's limit, for those who may; Python has no name for it."""

FEWER_QUESTIONS = ("GLOO_ENABLE_STORE_V2_API", "1")
"""gloo asks the store for all addresses at once, not for one after the other; what the user has set holds."""

MIN_POLL_S, MAX_POLL_S = 0.0005, 0.05
LOOK_UP_S = 0.3
"""Whoever gathers has seen by then that the world is over, unless the store does not answer."""

Socket = tuple[int, str]
"""A descriptor with the inode it stood for: descriptors are used again, inodes are not."""


def gpu_of(device: torch.device) -> str:
    """Tells a GPU from any other, in whichever process; empty if this is none, or NCCL is not there for it."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def offer_gpu(store: Any, gpu: str) -> None:  # noqa: ANN401  torch does not export the type
    """Say which GPU this rank has, before it says that it is here: NCCL needs one for each rank alone."""
    if not gpu or store.add(f"gpu/{gpu}", 1) > 1:
        store.set("no nccl", b"")


def choose_backend(store: Any) -> str:  # noqa: ANN401  torch does not export the type
    """What all ranks use, once all are here: NCCL if each has a GPU to itself; gloo moves everything else."""
    return "gloo" if store.check(["no nccl"]) else "cpu:gloo,cuda:nccl"


def open_sockets() -> set[Socket]:
    found: set[Socket] = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found.add((int(name), link))
    return found


def shut(sockets: set[Socket]) -> set[Socket]:
    """End those of `sockets` that still are what they were and are connected, and return these."""
    ended: set[Socket] = set()
    for fd, link in sorted(sockets):
        with contextlib.suppress(OSError):
            copy = os.dup(fd)
            # Of the copy: the number may be given to another one at any time.
            if os.readlink(f"/proc/self/fd/{copy}") != link:
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                connection.getpeername()
                connection.shutdown(socket.SHUT_RDWR)
                ended.add((fd, link))
    return ended


def enlarge(sockets: set[Socket]) -> None:
    """Make room for what gloo writes at once; as much as we are allowed to."""
    for fd, _ in sockets:
        # Of whichever family it is: Python need not ask for what this does not depend on.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=os.dup(fd)) as connection,
        ):
            try:
                connection.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
            except OSError:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def settle(sockets: set[Socket]) -> None:
    """Let every rank's gloo do what it has been asked for, for a moment.

    It answers a peer that is ready by writing to it; should the peer's end be shut by then, or what it reads be cut
    short, that is never reported to who waits for it.
    """
    deadline = time.monotonic() + MAX_SETTLE_S
    time.sleep(SETTLE_S)
    while time.monotonic() < deadline and any(_num_unread(fd) for fd, _ in sockets):
        time.sleep(SETTLE_S / 10)


def _num_unread(fd: int) -> int:
    count = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


class Severed(RuntimeError):
    """The generation of a group is over."""

    def __init__(self) -> None:
        super().__init__("the world of this group is over")


class Group:
    """The default group of `torch.distributed`, for one generation."""

    def __init__(
        self,
        *,
        generation: int,
        rank: int,
        size: int,
        store: Address,
        timeout_s: float,
        gpu: str = "",
        subgroups: Subgroups | None = None,
    ) -> None:
        self.generation = generation
        self.rank = rank
        self.size = size
        self._store = store
        self._gpu = gpu
        self._nccl: Any = None
        self._subgroups = subgroups
        self._timeout = timedelta(seconds=timeout_s)
        self._connect = timedelta(seconds=CONNECT_S + CONNECT_PER_RANK_S * size)
        self._lock = threading.Lock()
        self._sockets: set[Socket] = set()
        self._known = open_sockets()
        self._severed = False
        self._store_sockets: set[Socket] = set()
        self._is_left = False
        self._ended: set[Socket] | None = None
        """Connections between ranks that were shut; None before."""
        self._is_gathering = True
        """Not all ranks are here yet: who waits for them looks up now and then, and no wait has to be ended."""
        self.is_built = False

    def build(self) -> None:
        """Blocks until every rank of the generation is here; `sever` from another thread ends the wait."""
        try:
            client = stores.connect(self._store, timeout=self._timeout, check=self._check)
            self._note_sockets()
            self._store_sockets = self._sockets
            store = dist.PrefixStore(f"generation/{self.generation}", client)  # type: ignore[attr-defined]
            offer_gpu(store, self._gpu)
            self._await_everyone(store)
            os.environ.setdefault(*FEWER_QUESTIONS)
            backend = choose_backend(store)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=self._connect)
            distributed_c10d._set_pg_timeout(self._timeout)  # noqa: SLF001  torch has no public way
            if "nccl" in backend:
                self._nccl = dist.group.WORLD._get_backend(torch.device("cuda"))  # type: ignore[union-attr]  # noqa: SLF001
            self.build_subgroups()
            self.is_built = True
        except (RuntimeError, dist.DistError) as error:
            if self._severed:
                raise Severed from error
            raise

    def build_subgroups(self) -> None:
        """Make the groups that the script has asked for since the last time."""
        if self._subgroups is not None:
            self._subgroups.build(connect=self._connect, timeout=self._timeout)
        self._note_sockets()
        enlarge(self._sockets)

    def sever(self) -> None:
        """End every wait on this group; called from the watcher's thread."""
        with self._lock:
            self._severed = True
            if self._is_gathering:
                threading.Thread(target=self._end_gathering, name="holdfast-gathering-end", daemon=True).start()
                return
            # Before the pause: the main thread may leave this world meanwhile, and have those of the next one.
            on_devices = [] if self._subgroups is None or self._is_left else self._subgroups.on_devices()
            settle(self._sockets)
            self._ended = shut(self._sockets) - self._store_sockets
            for backend in [self._nccl, *on_devices] if self._nccl is not None else on_devices:
                backend.abort()

    def uses_nccl(self) -> bool:
        return self._nccl is not None

    def is_cut(self) -> bool:
        """Severed, and gloo has closed every connection: nothing more comes from a peer."""
        return self._ended is not None and not self._ended & open_sockets()

    def drop(self) -> None:
        """Leave the group. Its own end, in a thread, takes a while: for good if it waits for a message that is lost."""
        self._is_left = True
        groups = [dist.group.WORLD] if dist.is_initialized() else []
        if self._subgroups is not None:
            groups += self._subgroups.forget()
        if dist.is_initialized():
            dist.destroy_process_group()
        threads.start(groups.clear, name="holdfast-group-end")
        # A group that failed while it was built leaves its number behind, and numbers name the keys in the store:
        # they have to be the same on every rank, newcomers included.
        distributed_c10d._world.group_count = 0  # noqa: SLF001  torch has no public way

    def _await_everyone(self, store: Any) -> None:  # noqa: ANN401  torch does not export the type
        """Ask now and then: a client that is cut off while it waits fills the log with its stack."""
        if store.add("arrived", 1) == self.size:
            store.set("all arrived", b"")
        began = time.monotonic()
        while not store.check(["all arrived"]):
            waited_s = time.monotonic() - began
            self._check()
            if waited_s > self._timeout.total_seconds():
                raise RuntimeError(f"not all {self.size} ranks of generation {self.generation} came")
            time.sleep(min(MAX_POLL_S, max(MIN_POLL_S, waited_s / 20)))
        with self._lock:
            self._is_gathering = False
            if self._severed:
                raise Severed

    def _check(self) -> None:
        if self._severed:
            raise Severed

    def _end_gathering(self) -> None:
        """A store that has fallen silent does not answer who looks up: end its connection, if it is still in use."""
        time.sleep(LOOK_UP_S)
        with self._lock:
            if self._is_gathering:
                shut(self._sockets)

    def _note_sockets(self) -> None:
        with self._lock:
            self._sockets = open_sockets() - self._known
            if self._severed:
                shut(self._sockets)
