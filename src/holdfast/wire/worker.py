"""What an agent and the SDK in its workers say to each other, over a Unix socket.

Nothing is said in the steady state: a step sends no message.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from holdfast.errors import ProtocolError

LENGTH = struct.Struct("!I")
MAX_BYTES = 1 << 20


class Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Attach(Message, frozen=True):
    """The script has called `holdfast.init()`: this worker can be repaired in place."""


class AtLoop(Message, frozen=True):
    """A worker without a rank has come to its loop, and waits there for one."""


class Faulted(Message, frozen=True):
    """A step failed and the process lives."""

    generation: int
    step: int
    kind: str
    error: str


class Raised(Message, frozen=True):
    """The script's own exception leaves a guarded function: this process is about to end."""


class Committed(Message, frozen=True):
    """The first step of a generation is committed on this rank."""

    generation: int
    timings_ms: dict[str, float]
    saves: bool
    """Whether this rank could save its state for all."""


class Stuck(Message, frozen=True):
    """The main thread does not come out of a collective of a world that is over: only killing the process helps."""

    generation: int
    stack: str


class Stranded(Message, frozen=True):
    """No rank holds a state that could be resumed from."""

    generation: int


class Heeded(Message, frozen=True):
    """The state is saved, as a notice asks for, or there is none to save."""


class Resumed(Message, frozen=True):
    """No rank held a state, and all have looked for checkpoints; told by the first of them."""

    generation: int
    step: int
    verdict: str


FromWorker = Attach | AtLoop | Faulted | Raised | Committed | Stuck | Stranded | Resumed | Heeded


class Join(Message, frozen=True):
    """Leave whatever generation you are in for this one."""

    generation: int
    rank: int
    local_rank: int
    size: int
    store_host: str
    store_port: int
    fresh: bool
    """The first world of these workers: nobody has a state yet, rank 0's counts."""
    verdict_s: float | None
    """From a fault that this rank reports to the next world; null: as long as it takes."""
    dumps: bool = False
    """Save the state that its ranks agree on, and wait to be stopped."""
    begins_anew: bool = False
    """Where no rank holds a state, they begin as those of a fresh world; there is no launcher that would start them
    again, and count how often."""


class Notice(Message, frozen=True):
    """This node is about to stop: save your state after the step you are in."""

    patience_s: float
    """To the end of the step; then it is given up, and the state before it is saved."""


FromAgent = Join | Notice

_from_worker = msgspec.msgpack.Decoder(FromWorker)
_from_agent = msgspec.msgpack.Decoder(FromAgent)


def frame(message: Message) -> bytes:
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def decode_from_worker(body: bytes) -> FromWorker:
    try:
        message: FromWorker = _from_worker.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a worker sent a message that makes no sense: {error}") from error
    return message


def read_from_agent(connection: socket.socket) -> FromAgent | None:
    """The next message, or None when the agent is gone."""
    header = _read(connection, LENGTH.size)
    if header is None:
        return None
    body = _read(connection, LENGTH.unpack(header)[0])
    return None if body is None else _from_agent.decode(body)


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return data
