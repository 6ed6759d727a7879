"""The names of the repair strategies."""

from __future__ import annotations

from enum import StrEnum

from holdfast.errors import SpecError


class Strategy(StrEnum):
    """Finest first."""

    RETRY = "retry"
    """Every process lives; the step runs again."""
    RECOVER_IN_PLACE = "recover-in-place"
    """The node, its agent and all other processes live; the lost ones are replaced on the same node."""
    RECOVER = "recover"
    """All processes of the other nodes live; another node takes the ranks of a lost one."""
    ELASTIC_TRAINING = "elastic-training"
    """The other nodes go on as a smaller world, and it grows again when a node comes."""
    DUMP = "dump"
    """Whoever lives saves the last step as a checkpoint, before all are stopped."""
    EXIT = "exit"
    """Stop the workers; they start again from their own checkpoint while restarts are left."""


def parse_strategies(text: str, *, source: str) -> tuple[Strategy, ...]:
    """Strategies in order of use, whatever order, blanks or repetitions the user wrote."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in list(Strategy):
            raise SpecError(source, name, f"it must be one of {', '.join(Strategy)}")
    return tuple(strategy for strategy in Strategy if strategy.value in names or strategy is Strategy.EXIT)
