"""Every wait for other ranks, the script's own included, is shown in the beacon: who waits is not to blame for a hang.

A wait that does not end although its group was severed is seen here too. gloo forgets a message that is cut short when
its connection ends, and then whoever waits for that message waits for good: only a new process helps.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from holdfast.observe.beacon import Beacon

FREE_S = 0.5
"""A severed wait raises within milliseconds; one that is seen twice in the same place never will."""


def show_waits(beacon: Beacon, *, note: Callable[[], None]) -> None:
    """From now on, whatever waits for a collective shows it, and calls `note` first."""
    original = dist.Work.wait

    def wait(self: dist.Work, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as torch has it
        note()
        with beacon.waiting():
            return original(self, *args, **kwargs)

    dist.Work.wait = wait  # type: ignore[method-assign]


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
