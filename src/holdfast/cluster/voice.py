"""What a process of a cluster says to the person who reads its output."""

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

SHOWN = frozenset({"waiting", "rank_table_ignored", "node_lost", "incident_opened", "incident_closed", "stopping"})


class Voice:
    """Tells entries of the story, each once."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.seen = 0
        """The number of the last entry that got here."""

    def say(self, text: str) -> None:
        sys.stderr.write(f"holdfast: {text}\n")
        sys.stderr.flush()

    def tell(self, entry: dict[str, object]) -> None:
        seq = int(str(entry["seq"]))
        if seq > self.seen and entry["kind"] in SHOWN:
            self.say(str(entry["text"]))
        self.seen = max(self.seen, seq)

    def die(self, reason: str, code: int) -> NoReturn:
        """End the process, whatever its main thread is doing."""
        self.say(f"{socket.gethostname()} {self._node}: {reason}")
        os._exit(code)
