"""Nested state as bytes and tensors, without pickle.

A state may hold dicts, lists, tuples, tensors, numbers, strings, bytes and None: whatever `state_dict()` of an
optimizer, a scheduler or a scaler returns. Anything else is refused by name when it is protected.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from holdfast.errors import SpecError

PLAIN = (bool, int, float, str, bytes)
INTEGERS = range(-(1 << 63), 1 << 64)
"""What MessagePack holds."""


def pack(state: Any, *, name: str) -> tuple[bytes, list[torch.Tensor]]:  # noqa: ANN401  any nested state
    """`state` as a skeleton and the tensors it refers to, in order."""
    tensors: list[torch.Tensor] = []
    return msgspec.msgpack.encode(_skeleton(state, tensors, name)), tensors


def shapes(tensors: list[torch.Tensor]) -> list[tuple[str, list[int]]]:
    return [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in tensors]


def empty(shape: tuple[str, list[int]], device: torch.device) -> torch.Tensor:
    return torch.empty(shape[1], dtype=getattr(torch, shape[0]), device=device)


def unpack(skeleton: bytes, tensors: list[torch.Tensor]) -> Any:  # noqa: ANN401
    return _flesh(msgspec.msgpack.decode(skeleton), tensors)


def to_bytes(state: Any, *, name: str) -> bytes:  # noqa: ANN401
    """A small state as one string of bytes."""
    skeleton, tensors = pack(state, name=name)
    raw = [tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    return msgspec.msgpack.encode((skeleton, shapes(tensors), raw))


def from_bytes(data: bytes) -> Any:  # noqa: ANN401
    skeleton, each_shape, raw = msgspec.msgpack.decode(
        data, type=tuple[bytes, list[tuple[str, list[int]]], list[bytes]]
    )
    tensors = []
    for shape, part in zip(each_shape, raw, strict=True):
        tensor = empty(shape, torch.device("cpu"))
        if part:
            tensor.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(part), dtype=torch.uint8))
        tensors.append(tensor)
    return unpack(skeleton, tensors)


def _skeleton(value: Any, tensors: list[torch.Tensor], name: str) -> Any:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return ["x", len(tensors) - 1]
    if value is None or isinstance(value, PLAIN):
        return ["p", _plain(value, name)]
    if isinstance(value, dict):
        items = [(key, item, f"{name}[{key!r}]") for key, item in value.items()]
        return ["d", [[_plain(key, at), _skeleton(item, tensors, at)] for key, item, at in items]]
    if isinstance(value, list | tuple):
        kind = "l" if isinstance(value, list) else "t"
        return [kind, [_skeleton(item, tensors, f"{name}[{index}]") for index, item in enumerate(value)]]
    raise _refusal(value, name)


def _plain(value: Any, name: str) -> Any:  # noqa: ANN401
    """`value` as the plain type that it is a kind of, as NumPy's numbers are."""
    if value is None:
        return None
    kind = next((kind for kind in PLAIN if isinstance(value, kind)), None)
    if kind is None or (kind is int and value not in INTEGERS):
        raise _refusal(value, name)
    return kind(value)


def _refusal(value: object, name: str) -> SpecError:
    allowed = "a protected state may hold dicts, lists, tuples, tensors, numbers, strings, bytes and None"
    return SpecError(f"protect({name})", type(value).__name__, allowed)


def _flesh(node: Any, tensors: list[torch.Tensor]) -> Any:  # noqa: ANN401
    kind, value = node
    match kind:
        case "x":
            return tensors[value]
        case "d":
            return {key: _flesh(item, tensors) for key, item in value}
        case "l":
            return [_flesh(item, tensors) for item in value]
        case "t":
            return tuple(_flesh(item, tensors) for item in value)
    return value
