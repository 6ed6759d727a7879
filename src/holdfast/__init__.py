"""Distributed training that does not stop.

    run = holdfast.init()

`import holdfast` costs nothing: torch is imported by `init()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import faults
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.sdk.session import Run

__all__ = ["__version__", "faults", "init"]


def init() -> Run:
    """Join the job around this process; without one, train in this process alone."""
    from holdfast.sdk import session

    return session.init()
