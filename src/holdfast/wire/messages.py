"""Every message between a master and an agent.

The version is settled before the first message, in the HTTP request that opens the connection, so a message that
cannot be decoded is always a defect and closes the connection.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from holdfast.core.ids import (
    Address,
    Check,
    Finish,
    Leave,
    Mastership,
    NodeStatus,
    Order,
    Outcome,
    Prepare,
    Run,
    Stop,
    World,
)
from holdfast.core.job.events import Will
from holdfast.errors import ProtocolError

PROTOCOL = 2
PROTOCOL_HEADER = "Holdfast-Protocol"
VERSION_HEADER = "Holdfast-Version"
MAX_MESSAGE_BYTES = 16 << 20
MEMBER_PATH = "/members"
SUCCESSOR_PATH = "/successor"

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

    deputy_port: int = 0
    """Where this node would host the master; 0: nowhere."""
    knows: tuple[int, int] = (-1, -1)
    """The version of the newest will that it has."""


class Reported(Message, frozen=True):
    seq: int
    status: NodeStatus


class Hello(Message, frozen=True):
    """The master's first message on every connection."""

    master: Mastership


class Bequest(Message, frozen=True):
    will: Will


class Moved(Message, frozen=True):
    """The master is somewhere else now."""

    master: Mastership
    address: Address
    job_id: str


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
    at_once: bool
    saves: bool = False


class CheckOrder(Message, frozen=True):
    check: Check


class LeaveOrder(Message, frozen=True):
    reason: str


class FinishOrder(Message, frozen=True):
    outcome: Outcome


class Happened(Message, frozen=True):
    """An entry of the job's story, for people at the other nodes."""

    entry: dict[str, Any]


FromAgent = Register | Reported
OrderMessage = RunOrder | PrepareOrder | StopOrder | CheckOrder | LeaveOrder | FinishOrder
FromMaster = Hello | Bequest | Moved | Accepted | Denied | Ack | OrderMessage | Happened

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
            return StopOrder(order.generation, order.reason, order.at_once, order.saves)
        case Check():
            return CheckOrder(order)
        case Leave():
            return LeaveOrder(order.reason)
        case Finish():
            return FinishOrder(order.outcome)


def message_order(message: OrderMessage) -> Order:
    match message:
        case RunOrder():
            return Run(message.world)
        case PrepareOrder():
            return Prepare(message.world)
        case StopOrder():
            return Stop(message.generation, message.reason, message.at_once, message.saves)
        case CheckOrder():
            return message.check
        case LeaveOrder():
            return Leave(message.reason)
        case FinishOrder():
            return Finish(message.outcome)


def store_address(message: Register, peer_host: str) -> Address:
    return Address(message.store_host or peer_host, message.store_port)


def deputy_address(message: Register, peer_host: str) -> Address | None:
    return Address(message.store_host or peer_host, message.deputy_port) if message.deputy_port else None


def decode_moved(data: bytes) -> Moved:
    try:
        return msgspec.json.decode(data, type=Moved)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"this names no successor: {error}") from error
