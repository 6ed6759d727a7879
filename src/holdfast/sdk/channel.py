"""The worker's line to its agent: a thread that listens, so that a blocked step can be interrupted.

It sleeps in `recv` until a world ends.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from holdfast.errors import JobError
from holdfast.wire.sockets import bindable
from holdfast.wire.worker import Attach, Join, Message, Notice, frame, read_from_agent


class Line(Protocol):
    """How a worker hears of worlds and is heard, whoever is at the other end."""

    arrived_at: float

    def send(self, message: Message) -> None: ...

    def newest(self) -> Join | None: ...

    def wait_above(self, generation: int, *, timeout_s: float | None) -> Join: ...


class Channel:
    """Where a worker hears of new worlds and says what its agent must know."""

    def __init__(
        self, path: str, *, interrupt: Callable[[], None], notice: Callable[[float], None], heed: Callable[[], None]
    ) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with bindable(Path(path)) as name:
            self._socket.connect(name)
        self._interrupt = interrupt
        self._notice = notice
        self._heed = heed
        """Called where a world is waited for, in the thread that waits."""
        self._is_noticed = False
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._join: Join | None = None
        self.arrived_at = 0.0
        """When the newest world became known here."""
        self._gone = False
        self._thread = threading.Thread(target=self._listen, name="holdfast", daemon=True)
        self._thread.start()
        self.send(Attach())

    def send(self, message: Message) -> None:
        try:
            with self._sending:
                self._socket.sendall(frame(message))
        except OSError as error:
            raise JobError("the agent of this node is gone") from error

    def newest(self) -> Join | None:
        return self._join

    def wait_above(self, generation: int, *, timeout_s: float | None) -> Join:
        """The newest world above `generation`; raises when none comes in time or the agent is gone."""
        arrived = self._wait(generation, timeout_s)
        while self._is_noticed:
            self._is_noticed = False
            self._heed()
            arrived = self._wait(generation, timeout_s)
        join = self._join
        if join is not None and join.generation > generation:
            return join
        reason = "the agent of this node is gone" if self._gone else f"no new world within {timeout_s:g} s"
        raise JobError(reason if not arrived or self._gone else "no new world")

    def _wait(self, generation: int, timeout_s: float | None) -> bool:
        """Until there is a world above, a notice or nobody there; False if none of it came in time."""

        def is_over() -> bool:
            return self._gone or self._is_noticed or (self._join is not None and self._join.generation > generation)

        with self._changed:
            return self._changed.wait_for(is_over, timeout_s)

    def _listen(self) -> None:
        while True:
            message = read_from_agent(self._socket)
            if isinstance(message, Notice):
                self._notice(message.patience_s)
                with self._changed:
                    self._is_noticed = True
                    self._changed.notify_all()
                continue
            with self._changed:
                if message is None:
                    self._gone = True
                elif self._join is None or message.generation > self._join.generation:
                    self._join, self.arrived_at = message, time.monotonic()
                self._changed.notify_all()
            if message is None:
                return
            self._interrupt()
