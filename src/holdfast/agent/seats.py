"""Which of this node's processes has which local rank.

Every process is started in a slot, which names its files: slots below the number of workers are local ranks, those
above belong to standbys. A standby that is given a rank keeps its slot. What a process says may be heard before the
news that it was started.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Seats:
    """Live processes by id."""

    num_workers: int
    slots: dict[int, int] = field(default_factory=dict)
    local_ranks: dict[int, int] = field(default_factory=dict)
    attached: set[int] = field(default_factory=set)
    _at_loop: dict[int, None] = field(default_factory=dict)
    """Those that wait at their loop, oldest first."""

    @property
    def parked(self) -> list[int]:
        """Standbys that can be given a rank, oldest first."""
        return [pid for pid in self._at_loop if pid in self.slots and pid not in self.local_ranks]

    def seat(self, pid: int, slot: int) -> None:
        self.slots[pid] = slot
        if slot < self.num_workers:
            self.local_ranks[pid] = slot

    def promote(self, local_rank: int) -> int | None:
        """Give a parked standby this rank; None if there is none."""
        pid = next(iter(self.parked), None)
        if pid is not None:
            self.local_ranks[pid] = local_rank
        return pid

    def park(self, pid: int) -> None:
        self._at_loop[pid] = None

    def leave(self, pid: int) -> tuple[int | None, int]:
        """Forget a process: the local rank it had, if any, and its slot."""
        self.attached.discard(pid)
        self._at_loop.pop(pid, None)
        return self.local_ranks.pop(pid, None), self.slots.pop(pid, -1)

    def free_standby_slots(self, num_standbys: int) -> list[int]:
        """Slots for as many standbys as are missing."""
        standbys = [slot for pid, slot in self.slots.items() if pid not in self.local_ranks]
        used = set(self.slots.values())
        missing = num_standbys - len(standbys)
        every = range(self.num_workers, self.num_workers + 2 * num_standbys + self.num_workers)
        return [slot for slot in every if slot not in used][: max(0, missing)]

    def clear(self) -> None:
        self.slots.clear()
        self.local_ranks.clear()
        self.attached.clear()
        self._at_loop.clear()
