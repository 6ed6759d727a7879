"""Threads that call torch, and are awaited before the interpreter ends.

Whoever comes back from torch while the interpreter ends is ended by it in the middle of C++, which aborts the process:
a training that had succeeded would fail with SIGABRT.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_started: list[threading.Thread] = []


def start(target: Callable[..., object], *args: object, name: str) -> None:
    """Run `target` in a thread that nobody has to wait for before the end."""
    _started[:] = [thread for thread in _started if thread.is_alive()]
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    _started.append(thread)
    thread.start()


def await_all(*, within_s: float) -> None:
    """Let them come to their end; one that does not is stuck, and will not come back."""
    until = time.monotonic() + within_s
    for thread in tuple(_started):
        thread.join(max(0.0, until - time.monotonic()))
