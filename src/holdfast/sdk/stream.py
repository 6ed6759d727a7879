"""Samples in an order of the user's own: from an IterableDataset, or a sampler, that keeps its place in a state.

The place is remembered before each step and moves between ranks like any protected state, so a repaired step reads its
samples again and a newcomer goes on where a live rank is. What each rank reads is the user's affair: samples are used
at least once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import default_collate

from holdfast.errors import SpecError
from holdfast.sdk.data import cut, deal


class Stream:
    """This rank's samples, one batch after the other; it begins again when it comes to an end."""

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401  an iterable with a state, or what the sampler's indices refer to
        *,
        sampler: Any = None,  # noqa: ANN401  an iterable of indices with a state
        global_batch: int,
        micro_batch: int | None = None,
        collate: Any = default_collate,  # noqa: ANN401  any collate function
    ) -> None:
        self._source = dataset if sampler is None else sampler
        self._look_up = None if sampler is None else dataset.__getitem__
        if not all(callable(getattr(self._source, name, None)) for name in ("state_dict", "load_state_dict")):
            valid = "it needs state_dict() and load_state_dict(), or its place is lost with a worker"
            raise SpecError("run.data()", type(self._source).__name__, valid)
        self._global_batch = global_batch
        self._micro_batch = micro_batch
        self._collate = collate
        self._iterator: Iterator[Any] | None = None
        self._num_read = 0

    @property
    def steps_per_epoch(self) -> int:
        raise SpecError("run.steps(epochs=)", type(self._source).__name__, "its length is not known: say total=N")

    def epoch_of(self, step: int) -> int:
        return 0

    def share(self, step: int, *, rank: int, size: int) -> float:
        return self._count(rank, size) / self._global_batch

    def piece_sizes(self, step: int, *, rank: int, size: int) -> list[int]:
        """How many samples each of the micro-batches has that were read last."""
        return cut(self._num_read, self._micro_batch)

    def batches(self, step: int, *, rank: int, size: int) -> list[Any]:
        """This rank's next micro-batches."""
        # A rank that has no part takes one all the same, and it does not count.
        count = self._count(rank, size) or 1
        samples = self._take(count) or self._take(count)
        if not samples:
            raise SpecError("run.data()", type(self._source).__name__, f"it gives no samples at step {step}")
        self._num_read = len(samples)
        width = self._micro_batch or count
        return [self._collate(samples[at : at + width]) for at in range(0, len(samples), width)]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._source.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)
        self._iterator = None

    def _count(self, rank: int, size: int) -> int:
        first, last = deal(self._global_batch, rank=rank, size=size)
        return last - first

    def _take(self, count: int) -> list[Any]:
        if self._iterator is None:
            self._iterator = iter(self._source)
        found = list(islice(self._iterator, count))
        if not found:
            self._iterator = None
        return found if self._look_up is None else [self._look_up(index) for index in found]
