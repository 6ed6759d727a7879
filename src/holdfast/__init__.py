"""Distributed training that does not stop.

    run = holdfast.init()

`import holdfast` costs nothing: torch is imported by `init()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.sdk.session import Run

__version__ = "0.1.0"


def init() -> Run:
    """Join the job around this process; without one, train in this process alone."""
    from holdfast.sdk import session

    return session.init()
