"""`python burden.py PARENT NUM_GROUPS GROUP... KIND ARGUMENT...`: a process that is in the way of others.

Joins the control groups, and dies with its parent. It imports nothing of ours, so that it weighs what it says.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
SLICE_S = 0.02
PIECE_BYTES = 1 << 20
STORM_BYTES = 4 << 20
"""Size of the file that a storm writes again and again."""


def burn(share: float) -> None:
    """Use a share of one core."""
    while True:
        begin = time.monotonic()
        while time.monotonic() < begin + SLICE_S * share:
            pass
        if share < 1:
            time.sleep(SLICE_S * (1 - share))


def hog(num_bytes: int, bytes_per_s: int) -> None:
    """Take memory, and keep it."""
    held, pieces = [], -(-num_bytes // PIECE_BYTES)
    began = time.monotonic()
    for number in range(pieces):
        piece = mmap.mmap(-1, PIECE_BYTES)
        piece.write(b"\1" * PIECE_BYTES)
        held.append(piece)
        time.sleep(max(0.0, began + (number + 1) * PIECE_BYTES / bytes_per_s - time.monotonic()))
    while True:
        signal.pause()


def storm(path: str) -> None:
    """Write a file and force it to the disk, without a pause. It has no name, and so leaves nothing."""
    fd = os.open(path, os.O_TMPFILE | os.O_WRONLY, 0o600)
    block = os.urandom(STORM_BYTES)
    while True:
        os.pwrite(fd, block, 0)
        os.fsync(fd)


def main(parent: int, groups: list[str], kind: str, words: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for group in groups:
        with open(os.path.join(group, "cgroup.procs"), "w") as file:
            file.write("0")
    # If the machine itself runs out of memory, nobody shall die for us.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    os.write(1, b"here\n")
    os.close(1)
    if kind == "burn":
        burn(float(words[0]))
    elif kind == "hog":
        hog(int(words[0]), int(words[1]))
    else:
        storm(words[0])


if __name__ == "__main__":
    first = 3 + int(sys.argv[2])
    main(int(sys.argv[1]), sys.argv[3:first], sys.argv[first], sys.argv[first + 1 :])
