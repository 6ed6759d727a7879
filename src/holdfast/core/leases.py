"""Who is alive, judged on the receiver's clock alone.

A lease is renewed by hearing from its holder and runs out `lease_s` later. Remote time never enters.
"""

from __future__ import annotations


class Leases:
    """Leases of one length."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._until: dict[str, float] = {}

    def renew(self, holder: str, *, now: float) -> None:
        self._until[holder] = now + self.lease_s

    def drop(self, holder: str) -> None:
        self._until.pop(holder, None)

    def holds(self, holder: str, *, now: float) -> bool:
        until = self._until.get(holder)
        return until is not None and now < until

    def remaining_s(self, holder: str, *, now: float) -> float:
        return max(0.0, self._until.get(holder, now) - now)

    def expired(self, *, now: float) -> list[str]:
        """Holders whose lease ran out, longest dead first."""
        # `<=`: at the deadline itself the holder has already missed it.
        gone = [holder for holder, until in self._until.items() if until <= now]
        return sorted(gone, key=lambda holder: (self._until[holder], holder))

    def renew_all(self, *, now: float) -> None:
        """After a master's restart: nobody could have been heard in between."""
        for holder in self._until:
            self._until[holder] = now + self.lease_s

    def next_deadline(self) -> float | None:
        return min(self._until.values(), default=None)
