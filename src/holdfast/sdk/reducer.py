"""Gradient averaging on communicators that can be replaced.

The layout of the buckets is fixed when the model is wrapped and never changes, so the order of summation does not
depend on history: a repaired run adds the same numbers in the same order as an undisturbed one. The buffers of rank
0 travel with the gradients, so all replicas are equal whenever a step is committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from holdfast.errors import SpecError

BUCKET_BYTES = 8 << 20
"""Large enough to amortise a collective, small enough to overlap with the rest of the backward pass."""


class LiveBuffers:
    """A module's buffers as they are now: many modules put a new tensor in the place of an old one."""

    def __init__(self, module: nn.Module) -> None:
        self._places = [(part._buffers, name) for part in module.modules() for name in part._buffers]  # noqa: SLF001

    def tensors(self) -> list[torch.Tensor]:
        found = (buffers.get(name) for buffers, name in self._places)
        return [buffer.detach() for buffer in found if buffer is not None and buffer.numel()]


class Bucket:
    """Parameters of one dtype and device whose gradients are reduced together."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self._unused: set[nn.Parameter] = set()
        """Parameters that this rank has no gradient for."""
        self.waits_for: set[nn.Parameter] = set()
        """Parameters whose gradients are not in the flat buffer yet."""
        self.allocate()
        self.reset()

    def allocate(self) -> None:
        """Take memory, anew when a reduction was given up: it may still write to the old."""
        first = self.parameters[0]
        size = sum(p.numel() for p in self.parameters)
        self.flat = torch.zeros(size + len(self.parameters), dtype=first.dtype, device=first.device)
        """The gradients, and behind them for each parameter how many ranks have one."""
        self._counts = self.flat[size:]
        self._views: dict[nn.Parameter, torch.Tensor] = {}
        offset = 0
        for parameter in self.parameters:
            self._views[parameter] = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    def reset(self) -> None:
        self.waits_for, self._unused = set(self.parameters), set()

    def complete(self, *, share: float) -> None:
        """Take what autograd had no gradient for, and count what there is."""
        for parameter in tuple(self.waits_for):
            self.take(parameter, share=share)
        self._counts.copy_(torch.tensor([parameter not in self._unused for parameter in self.parameters]))

    def leave_out_unused(self) -> None:
        """What no rank has a gradient for gets none, as with one rank: an optimizer lets it be."""
        if self._unused:
            for parameter, count in zip(self.parameters, self._counts.tolist(), strict=True):
                if count == 0:
                    parameter.grad = None

    def take(self, parameter: nn.Parameter, *, share: float) -> None:
        """Bring a gradient, weighted, into the flat buffer, and make it a view of that."""
        view = self._views[parameter]
        with torch.no_grad():
            if parameter.grad is None:
                self._unused.add(parameter)
                view.zero_()
            else:
                torch.mul(parameter.grad, share, out=view)
        parameter.grad = view
        self.waits_for.discard(parameter)


class DataParallel(nn.Module):
    """A model whose gradients are averaged over all ranks, or summed, when `backward()` returns."""

    def __init__(
        self, module: nn.Module, *, loss: Literal["mean", "sum"] = "mean", check: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        if loss not in ("mean", "sum"):
            raise SpecError("data_parallel(loss=)", loss, "it must be 'mean' or 'sum'")
        self._is_mean = loss == "mean"
        self.module = module
        self._check = check
        """Raises when the world of the collectives is over."""
        self._share = 1.0
        """This rank's part of the global batch: its gradients count for that much, if its loss is a mean."""
        self._buckets = [Bucket(parameters) for parameters in _split(module)]
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.parameters}
        self._buffers_of = LiveBuffers(module)
        self._devices = {bucket.flat.device for bucket in self._buckets if bucket.flat.is_cuda}
        self._weight: torch.Tensor | None = None
        """What the loss of this rank is the mean over, if the script has said; summed over all ranks in the end."""
        self._next = 0
        self._works: list[Any] = []
        self._armed = False
        self._sync = True
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._note_gradient)  # type: ignore[no-untyped-call]

    def set_share(self, share: float) -> None:
        """Say which part of the global batch this rank has."""
        self._share = share if self._is_mean else 1.0
        self._weight = None

    def set_weight(self, weight: float) -> None:
        """Say what this rank's loss is the mean over, where samples do not count alike."""
        # In 64 bits, whatever the gradients are in: tokens are many.
        self._share, self._weight = weight, torch.tensor(weight, dtype=torch.float64)

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  whatever the module takes and gives
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without averaging them."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def reset(self) -> None:
        """Forget a failed attempt."""
        for bucket, work in zip(self._buckets, self._works, strict=False):
            if not work.is_completed():
                bucket.allocate()
        for bucket in self._buckets:
            bucket.reset()
        self._next, self._works, self._armed, self._sync = 0, [], False, True

    def _note_gradient(self, parameter: nn.Parameter) -> None:
        if not self._sync or not dist.is_initialized():
            return
        if not self._armed:
            self._armed = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # noqa: SLF001
        self._bucket_of[parameter].take(parameter, share=self._share)
        # In one order on every rank, whatever order autograd takes: collectives are matched by order.
        while self._next < len(self._buckets) and not self._buckets[self._next].waits_for:
            self._reduce_next()

    def _reduce_next(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        bucket.complete(share=self._share)
        self._works.append(dist.all_reduce(bucket.flat, async_op=True))

    def _finish(self) -> None:
        """The end of the backward pass: reduce what is left, and wait."""
        while self._next < len(self._buckets):
            self._reduce_next()
        packed = self._send_buffers()
        if self._weight is not None:
            self._works.append(dist.all_reduce(self._weight, async_op=True))
        for work in self._works:
            work.wait()
        for device in self._devices:
            # Work for a device is only queued: an update must not be, before what it depends on is there.
            torch.cuda.current_stream(device).synchronize()
        self._check()
        for bucket in self._buckets:
            if self._weight is not None:
                bucket.flat.div_(self._weight.item())
            bucket.leave_out_unused()
        if packed is not None:
            self._take_buffers(packed)
        self.reset()

    def _send_buffers(self) -> torch.Tensor | None:
        buffers = self._buffers_of.tensors()
        if not buffers:
            return None
        packed = torch.cat([as_bytes(buffer.contiguous()) for buffer in buffers])
        self._works.append(dist.broadcast(packed, src=0, async_op=True))
        return packed

    def _take_buffers(self, packed: torch.Tensor) -> None:
        offset = 0
        for buffer in self._buffers_of.tensors():
            size = buffer.numel() * buffer.element_size()
            part = packed[offset : offset + size].clone()
            buffer.copy_(part.view(buffer.dtype).view(buffer.shape))
            offset += size


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as bytes; writing there writes the tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def _split(module: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Parameters in about the order in which backward yields them, cut into buckets."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
        kind = (parameter.dtype, parameter.device)
        if bucket and (size >= BUCKET_BYTES or kind != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if bucket:
        yield bucket
