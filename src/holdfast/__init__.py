"""Distributed training that does not stop.

    run = holdfast.init()

`import holdfast` costs nothing: torch is imported by `init()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast import faults
from holdfast.version import __version__

if TYPE_CHECKING:
    from os import PathLike

    from holdfast.sdk.session import Run
    from holdfast.sdk.step import Step

__all__ = ["Run", "Step", "__version__", "faults", "init"]


def init(*, tls: str | PathLike[str] | None = None) -> Run:
    """Join the job around this process; a scheduler serves here and does not return; without a job, train alone.

    `tls` names the configuration of the secure channel; a job that was launched without TLS is then an error.
    """
    from holdfast.cluster import roles

    return roles.init(tls=None if tls is None else str(tls))


def __getattr__(name: str) -> Any:  # noqa: ANN401  the types of `init()`, for annotations
    if name in ("Run", "Step"):
        from holdfast.sdk import session

        return getattr(session, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
