"""What survives a fault: the protected objects, remembered before an attempt and moved between ranks.

Parameters and optimizer state are not copied before a step: a rank that changed them and did not commit is torn, and
receives them from one that is not. Everything else that is protected is small, and is put back after a failed
attempt.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from holdfast.errors import SpecError
from holdfast.sdk import tree
from holdfast.sdk.reducer import as_bytes

SMALL_BYTES = 1 << 20
"""Tensors below this are sent together: each message costs more than its bytes."""


class Protected:
    """Every object that `run.protect` was given, by name."""

    def __init__(self) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.extras: dict[str, Any] = {}
        self._memory: tuple[list[torch.Tensor], dict[str, Any]] | None = None
        self._watched: list[nn.Parameter] | None = None
        """Parameters that no optimizer of torch's changes, which would tell; None until they are looked for."""
        self._versions: dict[nn.Parameter, int] = {}
        """Theirs, when they were remembered: torch counts how often a tensor is changed in place."""

    def add(self, name: str, value: Any) -> None:  # noqa: ANN401  anything with a state
        self._watched = None
        if isinstance(value, nn.Module):
            self.modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            tree.pack(value.state_dict(), name=name)
            self.optimizers[name] = value
        elif callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            tree.pack(value.state_dict(), name=name)
            self.extras[name] = value
        else:
            raise SpecError(f"protect({name})", type(value).__name__, "it needs state_dict() and load_state_dict()")

    # --- before an attempt, and after a failed one --------------------------------------------------------------

    def remember(self) -> None:
        buffers = [buffer.clone() for buffer in self._buffers()]
        # A copy: most objects give out their live tensors.
        self._memory = (buffers, {name: copy.deepcopy(value.state_dict()) for name, value in self.extras.items()})
        if self._watched is None:
            self._watched = self._unattended()
        self._versions = {parameter: parameter._version for parameter in self._watched}  # noqa: SLF001

    def changed(self) -> set[str]:
        """Parameters that were changed since `remember` by others than torch's optimizers; `.data` is not seen."""
        return {
            f"{name}.{key}"
            for name, module in self.modules.items()
            for key, parameter in module.named_parameters()
            if parameter in self._versions and self._versions[parameter] != parameter._version  # noqa: SLF001
        }

    def put_back(self) -> None:
        if self._memory is None:
            return
        buffers, extras = self._memory
        with torch.no_grad():
            for buffer, old in zip(self._buffers(), buffers, strict=True):
                buffer.copy_(old)
        for name, state in extras.items():
            self.extras[name].load_state_dict(state)
            if isinstance(self.extras[name], torch.amp.GradScaler):
                # What it did for each optimizer since its last update is not in its state.
                self.extras[name]._per_optimizer_states.clear()  # noqa: SLF001

    def forget(self) -> None:
        """What was remembered is committed: it must not be put back any more."""
        self._memory = None

    def _unattended(self) -> list[nn.Parameter]:
        groups = [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        attended = {parameter for group in groups for parameter in group["params"]}
        found = [parameter for module in self.modules.values() for parameter in module.parameters()]
        # What is made for inference alone does not count its changes.
        return [parameter for parameter in found if parameter not in attended and not parameter.is_inference()]

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self.modules.values() for buffer in module.buffers()]

    def _in_place(self) -> list[torch.Tensor]:
        """Tensors that every rank has, in the same order: parameters and buffers."""
        found: list[torch.Tensor] = []
        for module in self.modules.values():
            found += [parameter.detach() for parameter in module.parameters()]
            found += list(module.buffers())
        return found

    def has_all(self, names: Sequence[str]) -> bool:
        """Whether these are names of tensors; no name at all means everything, and that is not a tensor."""
        return bool(names) and set(names) <= self.tensors().keys()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by the name given to `protect` and their own."""
        return {
            f"{name}.{key}": tensor.detach()
            for name, module in self.modules.items()
            for key, tensor in (*module.named_parameters(), *module.named_buffers())
        }

    def _states(self) -> dict[str, Any]:
        """What is not a module, by name."""
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "extras": {name: value.state_dict() for name, value in self.extras.items()},
        }

    def _load_states(self, states: dict[str, Any]) -> None:
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(states["optimizers"][name])
        for name, value in self.extras.items():
            value.load_state_dict(states["extras"][name])

    # --- to disk and back ---------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """Everything protected; its tensors are the live ones."""
        return {"modules": self.tensors(), **self._states()}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `whole` gave; raises what does not fit."""
        mine, saved = self.tensors(), state["modules"]
        if differing := [name for name in mine.keys() | saved.keys() if _kind(mine, name) != _kind(saved, name)]:
            name = min(differing)
            raise ValueError(f"{name} is {_kind(mine, name)} here and {_kind(saved, name)} there")
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(saved[name])
        self._load_states(state)

    # --- from rank to rank --------------------------------------------------------------------------------------

    def send(self, ranks: list[int]) -> None:
        """Send the whole state to `ranks`."""
        skeleton, tensors = tree.pack(self._states(), name="state")
        header = msgspec.msgpack.encode((skeleton, tree.shapes(tensors)))
        for rank in ranks:
            _send_bytes(header, rank)
            for chunk in _chunks([*self._in_place(), *tensors]):
                dist.send(torch.cat([_on_host(t) for t in chunk]) if len(chunk) > 1 else _on_host(chunk[0]), rank)

    def send_named(self, rank: int) -> None:
        """Send the tensors that `rank` asks for."""
        names = msgspec.msgpack.decode(_receive_bytes(rank), type=list[str])
        named = self.tensors()
        for name in names:
            dist.send(_on_host(named[name]), rank)

    def receive_named(self, names: Sequence[str], rank: int) -> None:
        """Take these tensors from `rank`."""
        _send_bytes(msgspec.msgpack.encode(names), rank)
        named = self.tensors()
        for name in names:
            _receive_chunk([named[name]], rank)

    def receive(self, rank: int) -> None:
        """Take the whole state from `rank`; ours is overwritten."""
        skeleton, shapes = msgspec.msgpack.decode(_receive_bytes(rank), type=tuple[bytes, list[tuple[str, list[int]]]])
        tensors = [tree.empty(shape, torch.device("cpu")) for shape in shapes]
        for chunk in _chunks([*self._in_place(), *tensors]):
            _receive_chunk(chunk, rank)
        self._load_states(tree.unpack(skeleton, tensors))


def _kind(tensors: dict[str, torch.Tensor], name: str) -> str:
    tensor = tensors.get(name)
    return "absent" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def _send_bytes(data: bytes, rank: int) -> None:
    dist.send(torch.tensor([len(data)]), rank)
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), rank)


def _receive_bytes(rank: int) -> bytes:
    length = torch.empty(1, dtype=torch.int64)
    dist.recv(length, rank)
    payload = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(payload, rank)
    return payload.numpy().tobytes()


def _chunks(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Large tensors alone, runs of small ones together; the same cut on both sides."""
    chunks: list[list[torch.Tensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            continue
        if size > SMALL_BYTES:
            chunks.append([tensor])
            room = 0
        elif size > room:
            chunks.append([tensor])
            room = SMALL_BYTES - size
        else:
            chunks[-1].append(tensor)
            room -= size
    return chunks


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return as_bytes(tensor.cpu().contiguous())


def _receive_chunk(chunk: list[torch.Tensor], rank: int) -> None:
    with torch.no_grad():
        if len(chunk) == 1 and chunk[0].is_contiguous() and chunk[0].is_cpu:
            dist.recv(as_bytes(chunk[0]), rank)
            return
        packed = torch.empty(sum(t.numel() * t.element_size() for t in chunk), dtype=torch.uint8)
        dist.recv(packed, rank)
        offset = 0
        for tensor in chunk:
            size = tensor.numel() * tensor.element_size()
            tensor.copy_(packed[offset : offset + size].clone().view(tensor.dtype).view(tensor.shape))
            offset += size
