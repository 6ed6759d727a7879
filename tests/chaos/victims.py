"""Processes to put faults into: each answers questions about how it fares."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs import kill, until

from holdfast.platforms.local.namespaces import configure, in_namespace

LOOP = """
import json, os, socket, sys, time
def write(path, num_bytes, sync=False):
    try:
        with open(path, "wb") as file:
            file.write(bytes(num_bytes))
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    return ""
def rename(old, new):
    try:
        os.rename(old, new)
    except OSError as error:
        return error.strerror
    return ""
def send(host, port, num_bytes):
    with socket.create_connection((host, port), timeout=20) as there:
        there.sendall(bytes(num_bytes))
        return there.recv(1).decode()
def in_fork(function):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(function()).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(reader, 4096))
print("here", flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""
ANSWER_S = 20.0


class Victim:
    def __init__(self, directory: Path, *, prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self.peer: Victim | None = None
        """Who is at the other end of its cable."""
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=directory.parent,
            start_new_session=True,
        )
        assert self._hear() == "here\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, question: str) -> Any:
        self.tell(question)
        return self.hear()

    def tell(self, question: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")

    def hear(self) -> Any:
        return json.loads(self._hear())

    def _hear(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], ANSWER_S)[0], "no answer"
        return self.process.stdout.readline()

    def end(self) -> None:
        kill(self.pid, signal.SIGKILL)
        self.process.communicate()


def connect(one: Victim, other: Victim) -> None:
    """A cable between two victims that have networks of their own."""
    one.peer = other
    configure(
        one.pid,
        [
            "link set lo up",
            f"link add eth0 type veth peer name eth0 netns {other.pid}",
            "address add 10.87.0.1/24 dev eth0",
            "link set eth0 up",
            "route add 10.88.0.0/16 via 10.87.0.2",
        ],
    )
    configure(other.pid, ["link set lo up", "address add 10.87.0.2/24 dev eth0", "link set eth0 up"])
    until(lambda: reaches(one), within_s=30, what="the cable to work")


def echo(victim: Victim, num_bytes: int) -> None:
    """Have a victim send so much, over a connection that is there already when it begins, and wait for a word back."""
    peer = victim.peer
    assert peer is not None, "it has a cable"
    listener = in_namespace(peer.pid, lambda: socket.create_server(("10.87.0.2", 0)))
    with listener:
        listener.settimeout(ANSWER_S)
        victim.tell(f"send('10.87.0.2', {listener.getsockname()[1]}, {num_bytes})")
        theirs, _ = listener.accept()
        with theirs:
            theirs.settimeout(ANSWER_S)
            left = num_bytes
            while left:
                left -= len(theirs.recv(left))
            theirs.send(b"!")
        assert victim.hear() == "!"


def reaches(victim: Victim) -> bool:
    """Whether a packet to the other end is answered: nobody listens there, and the refusal comes back."""
    question = "socket.socket(socket.AF_INET).connect_ex(('10.87.0.2', 9))"
    asked = f"(socket.setdefaulttimeout(0.3), {question})[1]"
    return os.strerror(victim.ask(asked)) == "Connection refused"
