"""From what was seen to what went wrong: one table, and the choice of the root cause.

A killed worker makes its peers fail too, within milliseconds and with exceptions of their own. So the first
failure seen is the root cause unless it looks like the echo of another one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.ids import WorkerFailure


class FaultKind(StrEnum):
    EXCEPTION = "exception"
    """The script raised."""
    EXITED = "exited"
    """The script chose a non-zero exit code and left no traceback."""
    KILLED = "killed"
    """SIGKILL from outside: a person, or the kernel short of memory."""
    CRASHED = "crashed"
    """A signal that a bug in native code raises."""
    SIGNALLED = "signalled"
    """Any other signal."""
    PEER_LOST = "peer lost"
    """A communication error: the worker lost somebody else and is not the cause."""
    HUNG = "hung"
    """It did not get on, and was killed for that."""
    STOPPED = "stopped"
    """Ended because we stopped it."""
    NOT_STARTED = "not started"


CRASH_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)

PEER_LOST_MARKS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket Timeout",
    "DistNetworkError",
    "DistBackendError",
    "DistStoreError",
    "NCCL communicator was aborted",
    "gloo/transport",
    "Timed out waiting",
    "wait timeout after",
    "failed to recv",
)


MISUSE_MARK = "Duplicate GPU detected"
"""What NCCL says when two ranks have the same GPU, which no other try will change."""

HANG_MARK = "hung: "
MAX_HEADLINE = 160


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    evidence: str


def classify(failure: WorkerFailure) -> Fault:
    """What kind of fault this end of a worker shows, with the words to say it."""
    if failure.stopped_by_us:
        return Fault(FaultKind.STOPPED, f"stopped with the group ({_end(failure)})")
    if failure.error.startswith(HANG_MARK):
        return Fault(FaultKind.HUNG, failure.error.splitlines()[0])
    headline = _headline(failure.error)
    if says_peer_lost(_message(failure.error)):
        return Fault(FaultKind.PEER_LOST, f"lost a peer: {headline}")
    if failure.signal is not None and failure.signal in CRASH_SIGNALS:
        return Fault(FaultKind.CRASHED, f"died of {signal_name(failure.signal)}")
    if failure.signal == signal.SIGKILL:
        return Fault(FaultKind.KILLED, "killed by SIGKILL")
    if failure.signal is None and failure.exit_code is None:
        return Fault(FaultKind.NOT_STARTED, f"could not be started: {failure.error}")
    if headline:
        return Fault(FaultKind.EXCEPTION, f"ended with {_end(failure)}: {headline}")
    kind = FaultKind.EXITED if failure.signal is None else FaultKind.SIGNALLED
    return Fault(kind, f"ended with {_end(failure)}")


def says_peer_lost(message: str) -> bool:
    return not says_misuse(message) and any(mark in message for mark in PEER_LOST_MARKS)


def says_misuse(message: str) -> bool:
    return MISUSE_MARK in message


def find_root_cause(failures: Iterable[WorkerFailure]) -> tuple[WorkerFailure | None, tuple[WorkerFailure, ...]]:
    """The failure to blame and those that followed from it; `failures` come in the order they were seen."""
    ordered = sorted(failures, key=lambda failure: _ECHO_ORDER.get(classify(failure).kind, 0))
    return (ordered[0], tuple(ordered[1:])) if ordered else (None, ())


_ECHO_ORDER = {FaultKind.PEER_LOST: 1, FaultKind.STOPPED: 2}


def exit_code_of(failure: WorkerFailure) -> int:
    """The exit code a shell would show for the worker."""
    if failure.signal is not None:
        return 128 + failure.signal
    return failure.exit_code or 1


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(failure: WorkerFailure) -> str:
    return signal_name(failure.signal) if failure.signal is not None else f"exit code {failure.exit_code}"


def _message(error: str) -> str:
    """The exception's own words, which may take several lines, without the frames above them."""
    lines = error.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    return "\n".join(lines[frames[-1] + 1 :] if frames else lines)


def _headline(error: str) -> str:
    """The line of a traceback that says what happened."""
    lines = [line for line in error.splitlines() if line and not line.startswith((" ", "Traceback"))]
    line = lines[-1].strip() if lines else ""
    return line if len(line) <= MAX_HEADLINE else line[: MAX_HEADLINE - 1] + "…"
