"""A fault that somebody outside has ordered for one worker: a file beside its beacon, looked for at every step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec


class Order(msgspec.Struct, frozen=True):
    what: Literal["exception", "damage"]
    key: str
    """Tells one order from another."""
    step: int = 0
    """The first step at which it may happen."""
    transient: bool = True
    """exception: whether it is one that is worth another try."""
    tensor: str = ""
    """damage: its name; empty for the first one that is protected."""
    told: bool = True
    """damage: whether the step fails for it at once, as if the machine had noticed."""


def order_file(beacon: str) -> Path:
    return Path(beacon + ".fault")


def place(beacon: str, order: Order) -> None:
    """Have a worker find an order, whole."""
    path = order_file(beacon)
    draft = path.with_name(f"{path.name}.{order.key}")
    draft.write_bytes(msgspec.json.encode(order))
    os.replace(draft, path)


def look(beacon: str) -> Order | None:
    """The order that waits for a worker; None if there is none, or it makes no sense."""
    try:
        return msgspec.json.decode(order_file(beacon).read_bytes(), type=Order)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def withdraw(beacon: str, key: str) -> None:
    """Take back an order that was not carried out."""
    found = look(beacon)
    if found is not None and found.key == key:
        order_file(beacon).unlink(missing_ok=True)
