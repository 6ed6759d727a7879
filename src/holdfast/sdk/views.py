"""Where each rank is, as the ranks tell each other when they meet; from this all of them compute the same answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from holdfast.sdk.checkpoints import Offer

UNASKED, REFUSED = -1, -2
"""In place of a number of checkpoints: it was not asked to save any, or is not in need of them; it cannot save any."""


class View(NamedTuple):
    """One rank's position, as it told the others."""

    committed: int
    """Steps; -1 if its state is of no use."""
    in_section: bool
    iteration: int
    sections: int
    uniform_since: int
    mendable: int
    """The step of which it holds all but a few tensors; -1 if there is no such."""
    reached: int
    """The step it is at, whatever its state; where nobody has one, that of the first that is new counts."""
    num_saved: int
    """Checkpoints that it has whole, or one of the numbers above."""
    is_new: bool
    """Whether it has never had a state from anybody."""

    @property
    def place(self) -> tuple[int, int]:
        """Where its loop is."""
        return self.iteration, self.sections


def exchange_views(mine: View, *, num_ranks: int) -> list[View]:
    return [View(*row) for row in _gather(torch.tensor(mine, dtype=torch.int64), num_ranks)]


def exchange_offers(mine: Offer, *, num_ranks: int, width: int) -> list[Offer]:
    """Every rank's checkpoints, of which none has more than `width`."""
    if width == 0:
        return [{}] * num_ranks
    told = torch.full((width, 2), -1)
    for row, pair in enumerate(mine.items()):
        told[row] = torch.tensor(pair)
    return [{step: size for step, size in rows if step >= 0} for rows in _gather(told, num_ranks)]


def _gather(mine: torch.Tensor, num_ranks: int) -> list[list]:  # type: ignore[type-arg]  # as deep as the tensor
    everyone = [torch.empty_like(mine) for _ in range(num_ranks)]
    dist.all_gather(everyone, mine)
    return [each.tolist() for each in everyone]
