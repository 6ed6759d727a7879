"""What a step is fed with: this rank's samples, and how much their gradients count."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.errors import SpecError
from holdfast.observe.beacon import Beacon
from holdfast.sdk.data import Data
from holdfast.sdk.reducer import DataParallel
from holdfast.sdk.stream import Stream


class Feed:
    """The data and the nets of a run; `where` tells this process's rank and the size of the world."""

    def __init__(self, beacon: Beacon, where: Callable[[], tuple[int, int]]) -> None:
        self._beacon = beacon
        self._where = where
        self.data: Data | Stream | None = None
        self.nets: list[DataParallel] = []

    def begin(self, number: int) -> None:
        """From here on gradients are those of this step."""
        rank, size = self._where()
        share = 1.0 / size if self.data is None else self.data.share(number, rank=rank, size=size)
        for net in self.nets:
            net.set_share(share)

    def reset(self) -> None:
        """Forget the gradients of an attempt that has failed."""
        for net in self.nets:
            net.reset()

    def epoch_of(self, number: int) -> int:
        return self.data.epoch_of(number) if self.data is not None else 0

    def batches(self, number: int) -> list[Any]:
        if self.data is None:
            raise SpecError("step.batch()", "no data", "call run.data(...) first")
        rank, size = self._where()
        with self._beacon.loading():
            return self.data.batches(number, rank=rank, size=size)

    def shares(self, number: int) -> list[float]:
        """The part of the global batch that each of this rank's micro-batches is."""
        assert self.data is not None, "there are micro-batches"
        rank, size = self._where()
        sizes = self.data.piece_sizes(number, rank=rank, size=size)
        share = self.data.share(number, rank=rank, size=size)
        return [share * (each / sum(sizes)) for each in sizes]

    def begin_piece(self, share: float) -> None:
        for net in self.nets:
            net.begin_piece(share)

    def weigh(self, weight: float) -> None:
        if not weight > 0:
            raise SpecError("step.weigh()", weight, "it must be above 0")
        for net in self.nets:
            net.set_weight(weight)

    @contextlib.contextmanager
    def without_averaging(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for net in self.nets:
                stack.enter_context(net.no_sync())
            yield
