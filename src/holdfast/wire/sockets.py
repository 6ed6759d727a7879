"""Names of Unix sockets that are as short as the system wants them, whatever directory they lie in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 107


@contextlib.contextmanager
def bindable(path: Path) -> Iterator[str]:
    """A name for `path` that can be bound and connected to while this lasts."""
    if len(os.fsencode(path)) <= MAX_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
