"""Why a node is gone, told by evidence."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.faults import signal_name


class Cause(StrEnum):
    """The names are those of the budgets."""

    KILLED = "killed"
    """Preempted, or killed from outside."""
    HARDWARE = "hardware"
    """Silent while its process lived, or a check failed on it."""
    SOFTWARE = "software"
    """It ended by itself, with an exit code or a crash."""
    OUT_OF_MEMORY = "out_of_memory"
    UNKNOWN = "unknown"


HARDWARE_CODES = (14, 201, 202)
"""Exit codes by which a node says that its hardware is bad; DLRover's."""
MEMORY_CODE = 247
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of a node's end."""

    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    silent: str = ""
    """Why the master had given it up, though its process lived."""
    unfit: str = ""
    """Why the master had refused it."""


def tell_cause(ending: Ending) -> tuple[Cause, str]:
    """The cause, and the evidence for it in words."""
    number = ending.signal
    if number is None and ending.exit_code is not None and SIGNAL_BASE < ending.exit_code < SIGNAL_BASE + 65:
        number = ending.exit_code - SIGNAL_BASE
    if ending.out_of_memory or ending.exit_code == MEMORY_CODE:
        return Cause.OUT_OF_MEMORY, "it needed more memory than it had"
    if ending.unfit:
        return Cause.HARDWARE, ending.unfit
    if ending.silent:
        return Cause.HARDWARE, f"the master gave it up: {ending.silent}"
    if number == signal.SIGBUS:
        return Cause.HARDWARE, f"ended by {signal_name(number)}"
    if number is not None:
        cause = Cause.KILLED if number in FROM_OUTSIDE else Cause.SOFTWARE
        return cause, f"ended by {signal_name(number)}"
    if ending.exit_code in HARDWARE_CODES:
        return Cause.HARDWARE, f"exit code {ending.exit_code}"
    if ending.exit_code:
        return Cause.SOFTWARE, f"exit code {ending.exit_code}"
    if ending.exit_code == 0:
        return Cause.UNKNOWN, "it ended with exit code 0, though the job goes on"
    return Cause.UNKNOWN, "nothing is known of its end"
