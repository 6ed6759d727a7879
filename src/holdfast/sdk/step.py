"""One step, as the script sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast.errors import SpecError
from holdfast.sdk.feed import Feed


class Step:
    """One optimizer update."""

    def __init__(self, feed: Feed, number: int) -> None:
        self._feed = feed
        self.number = number

    @property
    def epoch(self) -> int:
        return self._feed.epoch_of(self.number)

    def batch(self) -> Any:  # noqa: ANN401  whatever the dataset holds
        """This rank's samples of the step, collated."""
        batches = self._feed.batches(self.number)
        if len(batches) != 1:
            raise SpecError("step.batch()", f"{len(batches)} micro-batches", "use step.micro_batches()")
        return batches[0]

    def weigh(self, weight: float) -> None:
        """Say what this rank's loss is the mean over, such as its tokens; call it before `backward`, on every rank.

        Called in each of several micro-batches, it is of the loss of that one.
        """
        self._feed.weigh(weight)

    def micro_batches(self) -> Iterator[Any]:
        """This rank's micro-batches; gradients are averaged in the backward pass of the last one."""
        batches, shares = self._feed.batches(self.number), self._feed.shares(self.number)
        for number, (batch, share) in enumerate(zip(batches, shares, strict=True), 1):
            self._feed.begin_piece(share)
            with contextlib.nullcontext() if number == len(batches) else self._feed.without_averaging():
                yield batch
