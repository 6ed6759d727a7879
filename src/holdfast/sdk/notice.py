"""A node that is about to stop: the state may be lost with it, so one of its workers saves that first."""

from __future__ import annotations

import sys
import threading
import time

from holdfast.observe.beacon import Beacon, Cost, Phase
from holdfast.sdk.membership import Membership

SIGNAL_S = 1.0
"""For the signal to come that stops a process which has saved its state; one that lives on after that trains on."""


class Notice:
    """Given by the agent, and heeded between attempts, or where a world is waited for."""

    def __init__(self, beacon: Beacon) -> None:
        self._beacon = beacon
        self._is_due = False
        self.place: Membership | None = None
        self.can_save = False
        """Whether the script has said where."""
        self.is_looping = False
        """Whether there will be an opportunity."""

    def give(self, patience_s: float) -> None:
        """Have the state saved at the next opportunity, if there will be one. Called from the channel's thread."""
        self._is_due = self.can_save
        # After the flag: the loop may end at this moment, and looks at the flag then.
        if self.place is not None and not (self._is_due and self.is_looping):
            self.place.report_heeded()
            return
        timer = threading.Timer(patience_s, self._give_step_up)
        timer.daemon = True
        timer.start()

    def _give_step_up(self) -> None:
        """The peers may be gone: who waits for them waits no longer, and saves the step before."""
        if self._is_due and self.place is not None:
            self.place.cut()

    def heed(self) -> None:
        """If this node is about to stop, save what nobody else may have, and be stopped."""
        if not self._is_due or self.place is None:
            return
        self._is_due = False
        self._beacon.show(Phase.OUTSIDE, cost=Cost.NOTHING)
        if trouble := self.place.save_for_all():
            sys.stderr.write(f"holdfast: the last step is not saved: {trouble}\n")
        self.place.report_heeded()
        time.sleep(SIGNAL_S)
