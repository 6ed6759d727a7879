"""Which exceptions are faults of the machine rather than of the script: those are worth another try.

    holdfast.faults.register(MyTransientError)

An exception that is registered here, raised inside a step, makes every rank run that step again. The same exception
at the same step again is taken for a bug of the script after all.
"""

from __future__ import annotations

from collections.abc import Sequence


class MemoryDamaged(RuntimeError):
    """Memory of this rank is damaged: the named tensors, or everything, must come from another rank."""

    def __init__(self, message: str, *, tensors: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tensors = tuple(tensors)


class InjectedFault(RuntimeError):
    """Raised in a step because somebody outside wanted to see what happens (`holdfast chaos inject exception`)."""


_transient: list[tuple[type[BaseException], str]] = [(MemoryDamaged, "memory"), (InjectedFault, "injected")]


def register(exception: type[BaseException], *, kind: str = "") -> None:
    """Take `exception` for a transient fault of this kind."""
    _transient.append((exception, kind or exception.__name__))


def kind_of(error: BaseException) -> str | None:
    """The kind of transient fault that this exception is, or None."""
    return next((kind for cls, kind in reversed(_transient) if isinstance(error, cls)), None)
