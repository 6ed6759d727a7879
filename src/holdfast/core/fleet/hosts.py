"""Hosts on which nodes fail, of whatever role."""

from __future__ import annotations

from holdfast.core.budget import Budget
from holdfast.core.fleet.causes import Cause
from holdfast.spec.relaunch import RelaunchRules


class Hosts:
    def __init__(self, rules: RelaunchRules) -> None:
        self._rules = rules
        self._failures: dict[str, Budget] = {}

    def suspect(self, host: str, cause: Cause, *, now: float) -> bool:
        """Whether a host is to be avoided from now on; being killed, or short of memory, is not its fault."""
        if not host or cause in (Cause.KILLED, Cause.OUT_OF_MEMORY):
            return False
        rules = self._rules
        failures = self._failures.setdefault(host, Budget(rules.quarantine, window_s=rules.window_s))
        failures.spend(now=now)
        if failures.used(now=now) < rules.quarantine:
            return False
        del self._failures[host]
        return True
