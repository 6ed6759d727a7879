"""Collectives outside guarded functions: nothing can repair them, so what they raise says where and what to do."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from holdfast.core.faults import says_misuse, says_peer_lost
from holdfast.errors import UnguardedCollective
from holdfast.sdk.groups import Severed
from holdfast.sdk.subgroups import with_live_groups

COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier",
    "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
)  # fmt: skip


def is_communication(error: BaseException) -> bool:
    text = str(error)
    return says_peer_lost(text) or (isinstance(error, dist.DistError | Severed) and not says_misuse(text))


def has_lost_peer(error: BaseException) -> bool:
    """The same of what came out of a script: there it may be wrapped."""
    cause: BaseException | None = error
    while cause is not None and not is_communication(cause):
        cause = cause.__cause__
    return cause is not None


def explain_failures(is_guarded: Callable[[], bool]) -> None:
    """From now on a collective that fails while nothing guards it raises `UnguardedCollective`."""
    for name in COLLECTIVES:
        explained = _explained(name, with_live_groups(getattr(distributed_c10d, name)), is_guarded)
        setattr(distributed_c10d, name, explained)
        setattr(dist, name, explained)


def _explained(name: str, original: Callable[..., Any], is_guarded: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  whatever the collective takes and gives
        if is_guarded():
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        except (ValueError, RuntimeError) as error:
            if not dist.is_initialized():
                advice = "there is no group before the loop; call it in run.once(function)"
            elif is_communication(error):
                advice = "it lost a peer, and only what is in @run.step or @run.section is repaired"
            else:
                raise
            raise UnguardedCollective(name, calling_line(), advice) from error

    return call


def calling_line() -> str:
    """The line of the script that called torch or us."""
    frame = sys._getframe(1)  # noqa: SLF001  the documented way
    while frame.f_back is not None and _is_inner(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_inner(filename: str) -> bool:
    return "/torch/" in filename or filename.startswith(os.path.dirname(__file__))
