"""Every message between a master and an agent.

The version is settled before the first message, in the HTTP request that opens the connection, so a message that
cannot be decoded is always a defect and closes the connection.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from holdfast.core.ids import Address, Finish, NodeStatus, Order, Outcome, Prepare, Run, Stop, World
from holdfast.errors import ProtocolError

PROTOCOL = 1
PROTOCOL_HEADER = "Holdfast-Protocol"
VERSION_HEADER = "Holdfast-Version"
MAX_MESSAGE_BYTES = 16 << 20
MEMBER_PATH = "/members"

Name = Annotated[str, msgspec.Meta(max_length=1024)]
"""Names are kept and repeated, those of refused nodes too."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the class name is the tag on the wire."""


class Register(Message, frozen=True):
    """An agent's first message on every connection."""

    node: Name
    nonce: Name
    host: Name
    machine: Name
    """Identifies the set of process ids that `pid` belongs to."""
    pid: int
    num_workers: int
    store_host: str | None
    """None: the address that this connection comes from."""
    store_port: int
    wanted_rank: int | None
    job_id: Name
    min_nodes: int
    max_nodes: int
    status: NodeStatus
    seen: int
    """The last entry of the story that got here; -1 on a first connection, which begins with what comes next."""
    computer: str
    """Identifies the machine, whose workers are counted together for their local ranks."""
    agreed: dict[str, str]
    is_server: bool
    hears: list[Name] = []
    """Kinds of entries of the story that it wants to be told; empty for all."""


class Reported(Message, frozen=True):
    seq: int
    status: NodeStatus


class Accepted(Message, frozen=True):
    pass


class Denied(Message, frozen=True):
    reason: str
    retry_after_s: float | None


class Ack(Message, frozen=True):
    seq: int


class RunOrder(Message, frozen=True):
    world: World


class PrepareOrder(Message, frozen=True):
    world: World


class StopOrder(Message, frozen=True):
    generation: int
    reason: str


class FinishOrder(Message, frozen=True):
    outcome: Outcome


class Happened(Message, frozen=True):
    """An entry of the job's story, for people at the other nodes."""

    entry: dict[str, Any]


FromAgent = Register | Reported
FromMaster = Accepted | Denied | Ack | RunOrder | PrepareOrder | StopOrder | FinishOrder | Happened

_encoder = msgspec.msgpack.Encoder()
_from_agent = msgspec.msgpack.Decoder(FromAgent)
_from_master = msgspec.msgpack.Decoder(FromMaster)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_from_agent(data: bytes) -> FromAgent:
    try:
        message: FromAgent = _from_agent.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"an agent sent a message that makes no sense: {error}") from error
    return message


def decode_from_master(data: bytes) -> FromMaster:
    try:
        message: FromMaster = _from_master.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the master sent a message that makes no sense: {error}") from error
    return message


def order_message(order: Order) -> Message:
    match order:
        case Run():
            return RunOrder(order.world)
        case Prepare():
            return PrepareOrder(order.world)
        case Stop():
            return StopOrder(order.generation, order.reason)
        case Finish():
            return FinishOrder(order.outcome)


def message_order(message: RunOrder | PrepareOrder | StopOrder | FinishOrder) -> Order:
    match message:
        case RunOrder():
            return Run(message.world)
        case PrepareOrder():
            return Prepare(message.world)
        case StopOrder():
            return Stop(message.generation, message.reason)
        case FinishOrder():
            return Finish(message.outcome)


def store_address(message: Register, peer_host: str) -> Address:
    return Address(message.store_host or peer_host, message.store_port)
