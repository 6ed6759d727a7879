"""Every error Holdfast raises on purpose, by who must act.

HoldfastError
├── SpecError       the person who wrote the command: it names the flag or variable, the value, and what is valid
├── JobError        the person who runs the job: it could not be started or joined, and says why
│   └── Refused     the master said no; `retry_after_s` is None when waiting would not help
├── Stopped         nobody: a signal has stopped this process, as somebody wanted
├── UnguardedCollective   the person who wrote the script: a collective that no guarded function covers has failed
└── ProtocolError   us, or a peer of another version: a message that makes no sense
"""

from __future__ import annotations

import signal


class HoldfastError(Exception):
    """Root of the tree; `exit_code` is what the command line returns for it."""

    exit_code = 1


class SpecError(HoldfastError):
    """What the user asked for cannot be done as asked."""

    exit_code = 2

    def __init__(self, name: str, value: object, valid: str) -> None:
        super().__init__(f"{name}: {value!r} is not valid; {valid}")


class NotElected(HoldfastError):
    """A master that stood for election has lost it; somebody else goes on."""

    exit_code = 3


class Stopped(HoldfastError):
    """A signal has stopped this process; the job may go on without it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.exit_code = 128 + number


class JobError(HoldfastError):
    """The job could not be started, joined or carried on."""


class Refused(JobError):
    """The master refused this node."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class UnguardedCollective(HoldfastError):
    """A collective outside guarded functions failed, and cannot be repaired."""

    def __init__(self, name: str, line: str, advice: str) -> None:
        super().__init__(f"{line}: torch.distributed.{name}() outside guarded functions failed; {advice}")


class ProtocolError(HoldfastError):
    """A peer sent something that this version does not understand."""
