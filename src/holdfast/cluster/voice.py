"""What a process of a cluster says to the person who reads its output."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from typing import NoReturn

SHOWN = frozenset({"waiting", "rank_table_ignored", "node_lost", "incident_opened", "incident_closed", "stopping"})
SHOWN_BY_SCHEDULER = SHOWN | {"world_formed", "resumed", "node_refused", "master_restored"}


FLUSH_S = 1.0
"""For what was printed to get out."""


class Voice:
    """Tells entries of the story, each once."""

    def __init__(self, node: str, *, shown: frozenset[str] = SHOWN) -> None:
        self.node = node
        self._shown = shown
        self.seen = 0
        """The number of the last entry that got here."""

    def say(self, text: str) -> None:
        # Nobody may be left to read it.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"holdfast: {text}\n")
            sys.stderr.flush()

    def tell(self, entry: dict[str, object]) -> None:
        seq = int(str(entry["seq"]))
        if seq > self.seen and entry["kind"] in self._shown:
            self.say(str(entry["text"]))
        self.seen = max(self.seen, seq)

    def die(self, reason: str, code: int) -> NoReturn:
        """End the process, whatever its main thread is doing."""
        self.say(f"{socket.gethostname()} {self.node}: {reason}")
        leave(code)


def leave(code: int) -> NoReturn:
    """End the process here and now; what the script has printed before is not lost."""
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    # The main thread may be in the middle of a line that nobody reads.
    flushing.join(FLUSH_S)
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A script may have closed or replaced it.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
