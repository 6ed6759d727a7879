"""`python -m holdfast.chaos.warden`: does one deed, and takes it back when its time is up or its injector is gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

import msgspec

from holdfast.chaos.api import Effect
from holdfast.chaos.injection import Answer, Order, make
from holdfast.errors import HoldfastError

DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
"""Only the end of the pipe ends a warden in order."""


def main() -> int:
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0
    order = msgspec.json.decode(line, type=Order)
    try:
        effect = make(order)
    except HoldfastError as error:
        _tell(Answer(error=str(error)))
        return 0
    try:
        answer = _apply(effect)
        _tell(answer)
        if not answer.error:
            _keep(effect, order.for_s)
    finally:
        effect.undo()
    return 0


def _apply(effect: Effect) -> Answer:
    try:
        return Answer(did=effect.apply())
    except (HoldfastError, OSError) as error:
        return Answer(error=str(error))


def _tell(answer: Answer) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(answer) + b"\n")


def _keep(effect: Effect, for_s: float | None) -> None:
    """Until the time is up, or nobody holds the other end of the pipe."""
    end = None if for_s is None else time.monotonic() + for_s
    while end is None or time.monotonic() < end:
        rest = None if end is None else max(0.0, end - time.monotonic())
        waits = [each for each in (rest, effect.every_s) if each is not None]
        if select.select([0], [], [], min(waits) if waits else None)[0] and not os.read(0, 1):
            return
        effect.tend()


if __name__ == "__main__":
    sys.exit(main())
