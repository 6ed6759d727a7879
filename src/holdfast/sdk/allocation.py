"""Memory that a step frees is kept for the next one, not given back to the kernel and asked for again.

glibc comes to that by itself, or not, depending on what happens to lie at the end of its heap: then every step pays for
hundreds of page faults. So we begin with the largest thresholds that it would come to.
"""

from __future__ import annotations

import contextlib
import ctypes

TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_freed_memory() -> None:
    # Another C library has no such function, and keeps its own counsel.
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        mallopt(TRIM_THRESHOLD, 2 * LARGEST_MMAP_THRESHOLD)
