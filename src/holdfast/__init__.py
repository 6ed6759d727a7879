"""Distributed training that does not stop.

    run = holdfast.init()

`import holdfast` costs nothing: torch is imported by `init()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast import faults
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.sdk.session import Run, Step

__all__ = ["Run", "Step", "__version__", "faults", "init"]


def init() -> Run:
    """Join the job around this process; a scheduler serves here and does not return; without a job, train alone."""
    from holdfast.cluster import roles

    return roles.init()


def __getattr__(name: str) -> Any:  # noqa: ANN401  the types of `init()`, for annotations
    if name in ("Run", "Step"):
        from holdfast.sdk import session

        return getattr(session, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
