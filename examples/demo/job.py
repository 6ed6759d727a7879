"""A launcher as a child process: its output, and an end that leaves nothing behind."""

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

TICK_S = 0.1
STOP_S = 10.0
"""From SIGTERM to SIGKILL for a launcher; enough to end its workers in order."""


class Job:
    """Runs from `with` to the end of the block, however the block ends."""

    def __init__(self, command: Sequence[str], *, folder: Path, env: Mapping[str, str]) -> None:
        self._command, self._folder, self._env = command, folder, env
        self.output: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C must reach the demo alone, which then ends the job in order.
            start_new_session=True,
        )
        return self

    def lines(self, *, timeout_s: float) -> Iterator[str | None]:
        """Lines as they come until the job ends, and None at least every `TICK_S` of silence."""
        deadline = monotonic() + timeout_s
        assert self._process.stdout is not None, "the job was started with a pipe"
        unfinished = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while monotonic() < deadline:
                if not selector.select(TICK_S):
                    # A process that outlives the launcher may hold the pipe open for ever.
                    if self._process.poll() is not None:
                        return
                    yield None
                    continue
                received = os.read(self._process.stdout.fileno(), 65536)
                if not received:
                    return
                *whole, unfinished = (unfinished + received).split(b"\n")
                for text in whole:
                    self.output.append(text.decode(errors="replace"))
                    yield self.output[-1]
        raise TimeoutError(f"the job was not done after {timeout_s:.0f} s")

    def exit_code(self) -> int:
        """How the launcher ended, to be asked after its last line."""
        try:
            return self._process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"the launcher lives {STOP_S:.0f} s after its last line") from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with uninterrupted():
            if self._process.poll() is None:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=STOP_S)
            end_descendants()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores a second Ctrl-C while the first is being obeyed; keep the body bounded."""
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.signal(signum, signal.SIG_IGN) for signum in signals]
    try:
        yield
    finally:
        for signum, handler in zip(signals, before, strict=True):
            signal.signal(signum, handler)


def adopt_orphans() -> None:
    """From now on a process whose parents died is a child of this one, so it can be found."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kill what is left below this process. Needs `adopt_orphans` to miss nothing."""
    while living := descendants(os.getpid()):
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def descendants(root: int) -> list[int]:
    """Every process below `root` that still runs, parents first."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may itself hold spaces and parentheses.
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX" or int(parent) == os.getpid():
                children.setdefault(int(parent), []).append(int(status.parent.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]
