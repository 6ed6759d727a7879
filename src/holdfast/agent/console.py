"""What people see: the workers' lines, our own, and on a terminal a status line below them.

One thread writes everything. A terminal that is stopped, or a pager that nobody reads, then holds up the workers
that print, as it would without us, but never the agent: its beats go on.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import sys
import termios
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAX_LINE = 64 << 10
MAX_PENDING = 1000
READ_BYTES = 64 << 10
REDRAW_S = 0.5

COLOURS = {"info": "", "warning": "\x1b[33m", "error": "\x1b[31m"}
DIM, BOLD, RESET, CLEAR_LINE = "\x1b[2m", "\x1b[1m", "\x1b[0m", "\r\x1b[K"


@dataclass(slots=True)
class Stream:
    """One worker's output on its way to a file, to the console, or both."""

    source: int
    target: int | None
    prefix: bytes
    file: BinaryIO | None
    filtered: BinaryIO | None
    filters: tuple[bytes, ...]
    hidden: bytes = b""
    """Lines that begin so are for the file alone; empty: none."""
    rest: bytes = b""
    file_failed: bool = False


class Console:
    """Owns standard output and error of the agent."""

    def __init__(self) -> None:
        self.is_terminal = {1: os.isatty(1), 2: os.isatty(2)}
        self._colour = self.is_terminal[2] and "NO_COLOR" not in os.environ
        self._status = ""
        self._drawn = False
        self._pending: deque[tuple[int, bytes]] = deque(maxlen=MAX_PENDING)
        self._streams: deque[Stream] = deque()
        self._closing_at: float | None = None
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        self._thread = threading.Thread(target=self._run, name="holdfast-console", daemon=True)
        self._thread.start()

    # --- called by the agent ----------------------------------------------------------------------------------

    def say(self, text: str, *, level: str = "info") -> None:
        """One message of ours on standard error."""
        colour = COLOURS[level] if self._colour else ""
        reset = RESET if colour else ""
        name = f"{BOLD}holdfast:{RESET} " if self._colour else "holdfast: "
        self._pending.append((2, f"{name}{colour}{text}{reset}\n".encode()))
        self._poke()

    def show_status(self, text: str) -> None:
        """Replace the status line; without a terminal there is none."""
        if self.is_terminal[2] and text != self._status:
            self._status = text
            self._poke()

    def open_stream(
        self,
        *,
        target: int | None,
        prefix: str,
        file: Path | None,
        filtered: Path | None = None,
        filters: tuple[str, ...] = (),
        hidden: str = "",
        may_be_terminal: bool = True,
    ) -> int:
        """A descriptor for a worker to write to. It is a terminal if ours is one and the worker's lines go there."""
        if target is not None and self.is_terminal[target] and may_be_terminal:
            source, sink = _open_terminal(target)
        else:
            source, sink = os.pipe()
        handle = open(file, "ab", buffering=0) if file else None  # noqa: SIM115  closed when the stream ends
        matching = open(filtered, "ab", buffering=0) if filtered and filters else None  # noqa: SIM115
        needles = tuple(text.encode() for text in filters)
        self._streams.append(Stream(source, target, prefix.encode(), handle, matching, needles, hidden.encode()))
        self._poke()
        return sink

    def close(self, *, within_s: float) -> None:
        """Write what is left and end the thread; gives up on a console that nobody reads."""
        self._status = ""
        self._closing_at = time.monotonic() + within_s
        self._poke()
        self._thread.join(within_s + 1.0)

    def _poke(self) -> None:
        # A full pipe has a wake-up in it already.
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"x")

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_r, selectors.EVENT_READ)
            num_open = 0
            while True:
                while self._streams:
                    stream = self._streams.popleft()
                    selector.register(stream.source, selectors.EVENT_READ, stream)
                    num_open += 1
                ready = selector.select(0.05 if self._closing_at else REDRAW_S)
                for key, _ in ready:
                    if key.data is None:
                        os.read(self._wake_r, 4096)
                    elif not self._pump(key.data):
                        selector.unregister(key.data.source)
                        _close(key.data)
                        num_open -= 1
                self._flush()
                late = self._closing_at is not None and time.monotonic() >= self._closing_at
                idle = num_open == 0 and not self._streams and not self._pending
                if late or (idle and self._closing_at is not None):
                    self._erase()
                    return

    def _pump(self, stream: Stream) -> bool:
        try:
            data = os.read(stream.source, READ_BYTES)
        except OSError:
            # A pseudo-terminal whose last writer has gone answers with an error.
            data = b""
        whole = stream.rest + data
        if data:
            lines = whole.splitlines(keepends=True)
            cut = bool(lines) and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < MAX_LINE
            stream.rest = lines.pop() if cut else b""
        else:
            lines, stream.rest = [whole] if whole else [], b""
        for line in lines:
            self._pass_on(stream, line)
        return bool(data)

    def _pass_on(self, stream: Stream, line: bytes) -> None:
        if stream.file is not None and not stream.file_failed:
            try:
                stream.file.write(line)
            except OSError as error:
                stream.file_failed = True
                self.say(f"{stream.file.name} is no longer written: {error.strerror}", level="warning")
        if stream.filtered is not None and any(needle in line for needle in stream.filters):
            stream.filtered.write(stream.prefix + line)
        is_hidden = bool(stream.hidden) and line.startswith(stream.hidden)
        if stream.target is not None and not is_hidden and not line.endswith(b"\r"):
            # A line that ends in a bare carriage return is a progress bar about to be overwritten.
            text = line.rpartition(b"\r")[2] if b"\r" in line[:-2] else line
            self._write(stream.target, stream.prefix + (text if text.endswith(b"\n") else text + b"\n"))

    def _flush(self) -> None:
        while self._pending:
            self._write(*self._pending.popleft())
        if self._status and not self._drawn:
            width = shutil.get_terminal_size().columns
            _write_all(2, f"{DIM}{self._status[: width - 1]}{RESET}".encode())
            self._drawn = True
            self._last_status = self._status
        elif self._drawn and self._status != self._last_status:
            self._erase()
            self._flush()

    def _write(self, target: int, data: bytes) -> None:
        self._erase()
        _write_all(target, data)

    def _erase(self) -> None:
        if self._drawn:
            _write_all(2, CLEAR_LINE.encode())
            self._drawn = False

    _last_status = ""


def _open_terminal(like: int) -> tuple[int, int]:
    """A pseudo-terminal of the same size as ours that passes bytes on as they are."""
    source, sink = os.openpty()
    mode = termios.tcgetattr(sink)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(sink, termios.TCSANOW, mode)
    termios.tcsetwinsize(sink, termios.tcgetwinsize(like))
    return source, sink


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            # Nobody reads us any more; the job goes on without a reader, as it should.
            return


def _close(stream: Stream) -> None:
    os.close(stream.source)
    for handle in (stream.file, stream.filtered):
        if handle is not None:
            handle.close()


def plain_error(text: str) -> None:
    """A message before there is a console, or after."""
    sys.stderr.write(f"holdfast: {text}\n")
    sys.stderr.flush()
