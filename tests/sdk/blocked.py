"""Processes that block in one place or another while their group is severed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from jobs import until
from torch.utils.data import DataLoader, Dataset

from holdfast.core.ids import Address
from holdfast.observe.beacon import Beacon
from holdfast.sdk.groups import Group
from holdfast.sdk.waits import take_over_waits

WAIT_S = 60.0
"""What each wait would take if nobody ended it."""


def make_group(rank: int, port: int, *, generation: int = 1) -> Group:
    return Group(generation=generation, rank=rank, size=2, store=Address("127.0.0.1", port), timeout_s=WAIT_S)


class Victim:
    """The process whose group is severed: it tells the test what became of its wait."""

    def __init__(self, line: Connection, group: Group) -> None:
        self.line = line
        self.group = group
        self.released = threading.Event()
        # Not a daemon: the process must not end before it has answered.
        threading.Thread(target=self._obey).start()

    def _obey(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                match self.line.recv():
                    case "sever":
                        self.group.sever()
                        self.line.send("severed")
                    case "release":
                        self.released.set()

    def attempt(self, wait: Callable[[], Any]) -> None:
        """Report how a wait ends."""
        self.line.send("waiting")
        try:
            wait()
        except Exception as error:  # noqa: BLE001  the error is the result
            self.line.send(("raised", type(error).__name__, str(error)))
        else:
            self.line.send(("returned", "", ""))

    def tell_when_cut(self) -> None:
        until(self.group.is_cut, within_s=WAIT_S, what="gloo has closed its connections")
        self.line.send("cut")


def in_constructor(line: Connection, port: int, generation: int = 1) -> None:
    victim = Victim(line, make_group(0, port, generation=generation))
    victim.attempt(victim.group.build)


def at_dead_store(line: Connection, port: int) -> None:
    """Nobody is there any more."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    victim = Victim(line, make_group(0, dead))
    victim.attempt(victim.group.build)


def at_silent_store(line: Connection, port: int) -> None:
    """Somebody answers no more."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        victim = Victim(line, make_group(0, silent.getsockname()[1]))
        victim.attempt(victim.group.build)


def in_collective(line: Connection, port: int) -> None:
    victim = Victim(line, make_group(0, port))
    victim.group.build()
    victim.attempt(lambda: dist.all_reduce(torch.ones(8)))
    victim.tell_when_cut()


def in_forgotten_collective(line: Connection, port: int) -> None:
    """One that nothing ends, as if its message had been forgotten; the group is taken for cut when told so."""
    victim = Victim(line, make_group(0, port))
    victim.group.build()
    take_over_waits(Beacon(None), note=lambda: None, is_cut=victim.released.is_set, may_expire=lambda: True)
    victim.attempt(lambda: dist.all_reduce(torch.ones(8)))
    victim.group.drop()
    line.send("left")


def in_store(line: Connection, port: int) -> None:
    victim = Victim(line, make_group(0, port))
    victim.group.build()
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  torch has no public way
    victim.attempt(lambda: store.get("never"))
    victim.tell_when_cut()


def in_python(line: Connection, port: int) -> None:
    """Something that has nothing to do with the group, and then a collective."""
    victim = Victim(line, make_group(0, port))
    victim.group.build()
    victim.attempt(lambda: victim.released.wait(WAIT_S))
    victim.attempt(lambda: dist.all_reduce(torch.ones(8)))


class _Slow(Dataset):
    """Gives its sample when somebody writes to a pipe."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        os.read(self.reader, 1)
        return 42


def in_loader(line: Connection, port: int) -> None:
    victim = Victim(line, make_group(0, port))
    victim.group.build()
    dataset = _Slow()

    def release() -> None:
        victim.released.wait()
        os.write(dataset.writer, b"x")

    threading.Thread(target=release, daemon=True).start()
    victim.attempt(lambda: list(DataLoader(dataset, num_workers=1, multiprocessing_context="fork")))
    victim.attempt(lambda: dist.all_reduce(torch.ones(8)))


def with_own_sockets(line: Connection, port: int) -> None:
    """Sockets of the script's own, opened before and after the group: they must work when it is severed."""
    listener = socket.create_server(("127.0.0.1", 0))
    before = socket.create_connection(listener.getsockname()), listener.accept()[0]
    victim = Victim(line, make_group(0, port))
    victim.group.build()
    after = socket.create_connection(listener.getsockname()), listener.accept()[0]

    def talk() -> None:
        victim.released.wait(WAIT_S)
        victim.group.sever()
        # To listen on, too: gloo ends the process whose listening socket is shut.
        new = socket.create_connection(listener.getsockname()), listener.accept()[0]
        for here, there in (before, after, new):
            here.sendall(b"hello")
            assert there.recv(5) == b"hello"

    victim.attempt(talk)
    victim.attempt(lambda: dist.all_reduce(torch.ones(8)))


# --- peers ----------------------------------------------------------------------------------------------------


def peer(line: Connection, port: int) -> None:
    """Builds its half of the group and does nothing more."""
    make_group(1, port).build()
    line.send("built")
    line.recv()


class _Vanishing(dist.Store):
    """The store of a rank that stops for good once it has said where it listens."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)
        if key != "all arrived":
            os.kill(os.getpid(), signal.SIGSTOP)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def wait(self, *args: Any) -> None:
        self._store.wait(*args)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)


def vanishing_peer(line: Connection, port: int, generation: int) -> None:
    prefixed = dist.PrefixStore
    dist.PrefixStore = lambda prefix, store: _Vanishing(prefixed(prefix, store))
    line.send("built")
    make_group(1, port, generation=generation).build()
