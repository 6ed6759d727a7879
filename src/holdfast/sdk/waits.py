"""Every wait for other ranks, the script's own included, is shown in the beacon: who waits is not to blame for a hang.

gloo forgets a message that is cut short when its connection ends, and then whoever waits for that message waits for
good. So a collective is waited for a moment at a time, and given up when the group is cut: it is left to a thread of
gloo. A send or receive cannot be given up, nor can a wait inside torch: that is reported, and a new process helps.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

from holdfast.observe.beacon import Beacon
from holdfast.sdk.groups import Severed

MOMENT = timedelta(seconds=0.05)
POINT_TO_POINT = {int(kind) for kind in (OpType.SEND, OpType.RECV, OpType.RECVANYSOURCE)}
"""gloo ends the whole group when one of these expires."""
FREE_S = 0.5
"""A severed wait raises within milliseconds; one that is seen twice in the same place never will."""


def take_over_waits(
    beacon: Beacon, *, note: Callable[[], None], is_cut: Callable[[], bool], may_expire: Callable[[], bool]
) -> None:
    """From now on, whatever waits for a collective shows it, calls `note` first, and ends when the group is cut.

    `may_expire`: whether a wait can end early and be taken up again. With NCCL, that aborts the communicator.
    """
    original = dist.Work.wait

    def wait(self: dist.Work, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as torch has it
        note()
        with beacon.waiting():
            if args or kwargs or not may_expire() or self._get_op_type() in POINT_TO_POINT:  # type: ignore[attr-defined]
                return original(self, *args, **kwargs)
            return _wait_by_moments(self, original, is_cut)

    dist.Work.wait = wait  # type: ignore[method-assign]


def _wait_by_moments(work: dist.Work, wait: Callable[..., Any], is_cut: Callable[[], bool]) -> Any:  # noqa: ANN401
    was_cut = False
    while True:
        try:
            return wait(work, MOMENT)
        except RuntimeError:
            if work.is_completed():
                return wait(work)
        # Twice: whatever gloo has read already gets a moment to be worked on.
        if was_cut:
            raise Severed
        was_cut = is_cut()


def watch_main_thread(*, while_: Callable[[], bool], report: Callable[[str], None]) -> None:
    """Report the main thread's stack, once, if it is stuck in a wait while the condition holds."""
    threading.Thread(target=_watch, args=(while_, report), name="holdfast-stuck", daemon=True).start()


def _watch(condition: Callable[[], bool], report: Callable[[str], None]) -> None:
    before: tuple[int, int] | None = None
    while condition():
        time.sleep(FREE_S)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  the documented way
        if frame is None or not condition():
            return
        waits = frame.f_code.co_filename == __file__ or "/torch/distributed/" in frame.f_code.co_filename
        place = (id(frame), frame.f_lasti) if waits else None
        if place is not None and place == before:
            report("".join(traceback.format_stack(frame)))
            return
        before = place
