"""Faults that are ordered from outside (`holdfast chaos inject`), carried out in this process."""

from __future__ import annotations

import os

import torch

from holdfast.faults import InjectedFault, MemoryDamaged
from holdfast.sdk.state import Protected
from holdfast.wire import orders


class Ordered:
    """What waits for this worker. Without an order, a step costs one look for a file."""

    def __init__(self, beacon: str | None) -> None:
        self._beacon = beacon
        self._file = "" if beacon is None else str(orders.order_file(beacon))

    def strike(self, step: int, protected: Protected) -> None:
        """Carry out an order that is due: once."""
        if self._beacon is None or not os.access(self._file, os.F_OK):
            return
        order = orders.look(self._beacon)
        if order is None or step < order.step:
            return
        # First: the step is run again, and a process that takes our place looks here too.
        orders.withdraw(self._beacon, order.key)
        if order.what == "exception":
            raise (InjectedFault if order.transient else RuntimeError)(f"ordered from outside, at step {step}")
        name = _damage(protected, order.tensor)
        if order.told:
            raise MemoryDamaged(f"{name} was damaged on order, at step {step}", tensors=[name])


def _damage(protected: Protected, name: str) -> str:
    """Overwrite a tensor; its name."""
    tensors = protected.tensors()
    name = name or next(iter(tensors), "")
    if name not in tensors:
        raise RuntimeError(
            f"no tensor {name!r} is protected, and so none can be damaged; there are: {', '.join(tensors)}"
        )
    tensor = tensors[name]
    with torch.no_grad():
        tensor.fill_(
            float("nan") if tensor.is_floating_point() or tensor.is_complex() else torch.iinfo(tensor.dtype).max
        )
    return name
