"""Gradient averaging on communicators that can be replaced.

The layout of the buckets is fixed when the model is wrapped and never changes, so the order of summation does not
depend on history: a repaired run adds the same numbers in the same order as an undisturbed one. The buffers of rank
0 travel with the gradients, so all replicas are equal whenever a step is committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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
        if self._unused:
            self._counts.copy_(torch.tensor([parameter not in self._unused for parameter in self.parameters]))
        else:
            # A copy to a device would wait for all that is queued there.
            self._counts.fill_(1)

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
            elif share == 0.0:
                # Not even what is no number counts.
                view.zero_()
            else:
                torch.mul(parameter.grad, share, out=view)
        parameter.grad = view
        self.waits_for.discard(parameter)


class DataParallel(nn.Module):
    """A model whose gradients are averaged over all ranks, or summed, when `backward()` returns."""

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: Literal["mean", "sum"] = "mean",
        check: Callable[[], None] = lambda: None,
        waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        super().__init__()
        if loss not in ("mean", "sum"):
            raise SpecError("data_parallel(loss=)", loss, "it must be 'mean' or 'sum'")
        self._is_mean = loss == "mean"
        self.module = module
        self._check = check
        """Raises when the world of the collectives is over."""
        self._waiting = waiting
        """Entered while this rank waits for others."""
        self._share = 1.0
        """This rank's part of the global batch, or that of a piece of its samples: for so much the gradient counts, if
        the loss is a mean."""
        self._is_idle = False
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
        self._has_accumulated = False
        """Whether gradients of other pieces of this rank's samples are there, which count for `_share` too."""
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._note_gradient)  # type: ignore[no-untyped-call]

    def set_share(self, share: float) -> None:
        """Say which part of the global batch this rank has; with none, whatever it computes counts for nothing."""
        self._share = share if self._is_mean else float(share > 0.0)
        self._is_idle = share == 0.0
        self._weight = None
        self._has_accumulated = False

    def begin_piece(self, share: float) -> None:
        """Say which part of the global batch the samples of the next backward pass are."""
        if self._is_mean and self._weight is None:
            self._count_for(share)

    def set_weight(self, weight: float) -> None:
        """Say what the loss of this rank, or of the next piece, is the mean over, where samples do not count alike."""
        weight = 0.0 if self._is_idle else weight
        before = self._weight.item() if self._weight is not None and self._has_accumulated else 0.0
        self._count_for(weight)
        # In 64 bits, whatever the gradients are in: tokens are many.
        self._weight = torch.tensor(before + weight, dtype=torch.float64)

    def _count_for(self, share: float) -> None:
        """Let what is accumulated count for what it did, although it will be multiplied by another share."""
        if self._has_accumulated and share != self._share:
            self._scale(self._share / share)
        self._share = share

    def _scale(self, factor: float) -> None:
        for parameter in self._bucket_of:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

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
        self._has_accumulated = False

    def _note_gradient(self, parameter: nn.Parameter) -> None:
        if not self._sync:
            self._has_accumulated = True
            return
        has_group = dist.is_initialized()
        if not self._armed:
            self._armed = True
            finish = self._finish if has_group else self._finish_alone
            torch.autograd.Variable._execution_engine.queue_callback(finish)  # noqa: SLF001
        if not has_group:
            return
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
        # Work for a device is only queued. What this rank has yet to compute is no wait for others...
        self._synchronize()
        for work in self._works:
            work.wait()
        # ...and an update must not be queued before what it depends on is there.
        with self._waiting() if self._devices else contextlib.nullcontext():
            self._synchronize()
        self._check()
        for bucket in self._buckets:
            if self._weight is not None:
                bucket.flat.div_(self._weight.item())
            bucket.leave_out_unused()
        if packed is not None:
            self._take_buffers(packed)
        self.reset()

    def _finish_alone(self) -> None:
        """The end of the backward pass where there are no other ranks."""
        factor = self._share / (1.0 if self._weight is None else self._weight.item())
        if factor != 1.0:
            self._scale(factor)
        self.reset()

    def _synchronize(self) -> None:
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()

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
