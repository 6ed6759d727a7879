"""Who is alive, judged on the receiver's clock alone.

A lease is renewed by hearing from its holder and runs out `lease_s` later. Remote time never enters.
"""

from __future__ import annotations


class Leases:
    """Leases of one length."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._heard_at: dict[str, float] = {}

    def renew(self, holder: str, *, now: float) -> None:
        self._heard_at[holder] = now

    def drop(self, holder: str) -> None:
        self._heard_at.pop(holder, None)

    def silence_s(self, holder: str, *, now: float) -> float:
        """How long nothing has been heard of a holder."""
        return now - self._heard_at[holder]

    def expired(self, *, now: float) -> list[str]:
        """Holders whose lease ran out, longest dead first."""
        # `<=`: at the deadline itself the holder has already missed it.
        gone = [holder for holder, heard_at in self._heard_at.items() if heard_at + self.lease_s <= now]
        return sorted(gone, key=lambda holder: (self._heard_at[holder], holder))

    def quiet(self, *, now: float) -> list[str]:
        """Holders of which nothing was heard for half a lease."""
        return [holder for holder, heard_at in self._heard_at.items() if heard_at + self.lease_s / 2 <= now]

    def renew_all(self, *, now: float) -> None:
        """After a master's restart: nobody could have been heard in between."""
        for holder in self._heard_at:
            self._heard_at[holder] = now

    def next_deadline(self) -> float | None:
        first = min(self._heard_at.values(), default=None)
        return None if first is None else first + self.lease_s
