"""Being in the newest world: leaving the old one, meeting the other ranks, agreeing on a state.

Which step to resume from is settled by the ranks themselves with one small exchange: the highest step that any of
them has committed. Nobody has to be asked, so the master is not in the way of a repair.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from holdfast.core.ids import Address
from holdfast.errors import SpecError
from holdfast.observe.beacon import Beacon, Phase
from holdfast.sdk.channel import Line
from holdfast.sdk.checkpoints import Checkpoints, Offer
from holdfast.sdk.groups import Group, Severed
from holdfast.sdk.state import Protected
from holdfast.sdk.subgroups import Subgroups
from holdfast.sdk.waits import watch_main_thread
from holdfast.wire.worker import AtLoop, Committed, Faulted, Join, Raised, Stranded, Stuck

LEAVE_S = 1.0
"""For a group to end with its process; one that does not is left to the kernel."""
GROUP_TIMEOUT_S = 1800.0
"""What torch.distributed takes too; a world that changed ends every wait long before."""
VERDICT_TIMEOUT_S = 120.0
"""From a fault reported by this rank to a new world; on expiry the fault is raised as the script's own."""

DUMPED_S = 900.0
"""For those who have saved their state to be stopped; on expiry they end by an error."""

UNASKED, REFUSED = -1, -2
"""In place of a number of checkpoints: it was not asked to save any, or is not in need of them; it cannot save any."""


@dataclass(slots=True)
class Position:
    """How far a rank is: steps committed, and sections done since the last of them."""

    committed: int = 0
    sections: int = 0
    usable: bool = False
    """Whether this rank's state is that of `committed` steps: false for a newcomer, and between the first update of
    a parameter and the commit."""


@dataclass(frozen=True, slots=True)
class View:
    """One rank's position, as it told the others."""

    committed: int
    in_section: bool
    sections: int
    mendable: int
    """The step of which it holds all but a few tensors; -1 if there is no such."""
    reached: int
    """The step it is at, whatever its state; in a world where all are new, the first one's counts."""
    num_saved: int
    """Checkpoints that it has whole, or one of the numbers below."""


class Membership:
    """This process's place in one world after the other."""

    def __init__(
        self,
        channel: Line,
        protected: Protected,
        beacon: Beacon,
        *,
        backend: str,
        subgroups: Subgroups,
        launched_at: float,
    ) -> None:
        self.position = Position()
        self._launched_at = launched_at
        self.rank = self.local_rank = -1
        self.size = 0
        self.sections_to_skip = 0
        """Sections that others have done and we have not: our script passes them by."""
        self.joined_in_section = False
        self.checkpoints: Checkpoints | None = None
        self._channel = channel
        self._protected = protected
        self._beacon = beacon
        self._backend = backend
        self._subgroups = subgroups
        self._group: Group | None = None
        self._announced = 0
        self._agreed = False
        self._damaged: tuple[str, ...] = ()
        """The only tensors of no use, where that is known."""
        self._entered_at = 0.0
        self._timings: dict[str, float] = {}

    @property
    def generation(self) -> int:
        return self._group.generation if self._group is not None else 0

    def is_outdated(self) -> bool:
        newest = self._channel.newest()
        return newest is not None and newest.generation > self.generation

    def sever(self) -> None:
        """A new world exists, so every wait on the old one is over. Called from the channel's thread."""
        group = self._group
        if group is not None and self.is_outdated():
            group.sever()
            watch_main_thread(
                while_=lambda: group is self._group and group.is_built,
                report=lambda stack: self._channel.send(Stuck(group.generation, stack)),
            )

    def is_cut(self) -> bool:
        return self._group is not None and self._group.is_cut()

    def enter(self, *, in_section: bool) -> None:
        """Be in the newest world with a state that its ranks agree on."""
        while True:
            newest = self.newest()
            if newest.generation <= self.generation and self._agreed:
                return
            self._beacon.show(Phase.JOINING)
            try:
                self._meet(newest)
                if self._group is not None:
                    self._group.build_subgroups()
                self._agree(newest, in_section=in_section)
                if newest.dumps:
                    self._dump(newest)
            except (Severed, RuntimeError) as error:
                if not self.is_outdated():
                    self.report_fault("communication", str(error))

    def begin_at(self, step: int) -> None:
        """The step at which this script would begin; where others hold a state, theirs counts."""
        if not self.position.usable:
            self.position.committed = step

    def newest(self) -> Join:
        """The newest world; waits for the first."""
        if self._channel.newest() is None:
            self._channel.send(AtLoop())
        return self._channel.newest() or self._channel.wait_above(0, timeout_s=None)

    def meet(self) -> None:
        """Be in the newest world, with whatever state: for what a script does before its loop."""
        self._meet(self.newest())

    def meet_somewhere(self) -> None:
        """Be in a world, the newest there is when its ranks have met."""
        while True:
            try:
                self.meet()
            except (Severed, RuntimeError) as error:
                if not self.is_outdated():
                    self.report_fault("communication", str(error))
            else:
                return

    def report_fault(self, kind: str, error: str) -> None:
        """Say that this rank cannot go on in this world, and wait for the next one."""
        generation = self.generation
        self._channel.send(Faulted(generation, self.position.committed, kind, error))
        self._beacon.show(Phase.JOINING)
        self._channel.wait_above(generation, timeout_s=VERDICT_TIMEOUT_S)

    def report_end(self, error: BaseException) -> None:
        """Say that this process is about to end by an exception, so that its peers' errors are understood."""
        text = "".join(traceback.format_exception(error))
        self._channel.send(Raised(self.position.committed, text))

    def announce_commit(self, step: int) -> None:
        """Say so when the first step of a world is committed here: that closes the incident."""
        if self._announced == self.generation:
            return
        self._announced = self.generation
        rerun_ms = (time.monotonic() - self._entered_at) * 1000
        self._channel.send(Committed(self.generation, step, {**self._timings, "rerun": rerun_ms}))

    def leave(self) -> None:
        if self._group is not None:
            self._group.drop().join(LEAVE_S)

    def note_damage(self, names: Sequence[str]) -> None:
        """Parts of our state are of no use: these tensors, or everything where that cannot be said."""
        self._damaged = tuple(names) if self.position.usable and self._protected.has_all(names) else ()
        self.position.usable = False

    def _meet(self, join: Join) -> None:
        if join.generation <= self.generation:
            return
        began = time.monotonic()
        self._agreed = False
        if self._group is not None:
            self._group.drop()
        self._beacon.generation = join.generation
        self._beacon.show(Phase.JOINING)
        self.rank, self.local_rank, self.size = join.rank, join.local_rank, join.size
        self._group = Group(
            generation=join.generation,
            rank=join.rank,
            size=join.size,
            store=Address(join.store_host, join.store_port),
            timeout_s=GROUP_TIMEOUT_S,
            backend=self._backend,
            subgroups=self._subgroups,
        )
        if self.is_outdated():
            raise Severed
        self._group.build()
        waited = "unblock" if self.position.usable or self._announced else "replace"
        since = self._channel.arrived_at if waited == "unblock" else self._launched_at or self._channel.arrived_at
        self._timings = {
            waited: max(0.0, began - since) * 1000,
            "reconnect": (time.monotonic() - began) * 1000,
        }

    def _agree(self, join: Join, *, in_section: bool) -> None:
        """Resume from the highest step that any rank has committed; ranks without it receive it."""
        began, here = time.monotonic(), self.position
        usable = here.committed if here.usable else -1
        mendable = here.committed if self._damaged else -1
        found = self._look_for_checkpoints(join)
        num_saved = UNASKED if found is None else REFUSED if isinstance(found, SpecError) else len(found)
        mine = torch.tensor([usable, int(in_section), here.sections, mendable, here.committed, num_saved])
        everyone = [torch.empty_like(mine) for _ in range(join.size)]
        dist.all_gather(everyone, mine)
        views = [
            View(committed, bool(section), *rest) for committed, section, *rest in map(torch.Tensor.tolist, everyone)
        ]
        best = max(view.committed for view in views)
        if best < 0 and any(view.num_saved != UNASKED for view in views):
            views = self._restore(views, found)
            best = max(view.committed for view in views)
        if best < 0 and not join.fresh:
            self._channel.send(Stranded(join.generation))
            raise RuntimeError("no rank holds a state to resume from")
        source = next(rank for rank, view in enumerate(views) if view.committed == best)
        needy = [rank for rank, view in enumerate(views) if rank != source and view.committed < max(best, 0)]
        partly = [rank for rank in needy if best >= 0 and views[rank].mendable == best]
        if join.rank == source:
            self._protected.send([rank for rank in needy if rank not in partly])
            for rank in partly:
                self._protected.send_named(rank)
        elif join.rank in needy:
            self._take_state(source, mend=join.rank in partly)
        resumed = best if best >= 0 else views[source].reached
        if here.committed < resumed:
            here.sections = 0
        self._follow([view for view in views if view.committed == best])
        here.committed, here.usable, self._agreed = resumed, True, True
        self._entered_at = time.monotonic()
        self._timings["state"] = (self._entered_at - began) * 1000

    def _dump(self, join: Join) -> None:
        """Save what the ranks have agreed on, once, and be stopped."""
        if join.rank == 0 and self.checkpoints is not None:
            self.checkpoints.dump(self.position.committed)
        elif join.rank == 0:
            sys.stderr.write("holdfast: the last step is not saved: the script does not call run.checkpoint()\n")
        self.announce_commit(self.position.committed)
        self._channel.wait_above(join.generation, timeout_s=DUMPED_S)

    def _look_for_checkpoints(self, join: Join) -> Offer | SpecError | None:
        """What this rank has saved, or why it cannot save; None where nobody is in need of it."""
        if self.checkpoints is None or not join.fresh:
            return None
        try:
            return self.checkpoints.offer(join.rank)
        except SpecError as error:
            return error

    def _restore(self, views: list[View], mine: Offer | SpecError | None) -> list[View]:
        """Take the state from the disk, those who have it, and say where everybody is then.

        What makes that impossible is raised on every rank in the same words, so that it is taken for no fault of one.
        """
        num_asked = sum(view.num_saved != UNASKED for view in views)
        if self.checkpoints is None or mine is None or num_asked < len(views):
            raise SpecError("run.checkpoint()", f"called on {num_asked} of {len(views)} ranks", "call it on every rank")
        refusing = [rank for rank, view in enumerate(views) if view.num_saved == REFUSED]
        if isinstance(mine, SpecError) or refusing:
            raise self.checkpoints.unusable_on(refusing[0]) from (mine if isinstance(mine, SpecError) else None)
        offers = _exchange(mine, num_ranks=len(views), width=max(view.num_saved for view in views))
        step = self.checkpoints.resume(offers, rank=self.rank, first=views[0].reached)
        return [
            replace(view, committed=step) if step is not None and step in offer else view
            for view, offer in zip(views, offers, strict=True)
        ]

    def _take_state(self, source: int, *, mend: bool) -> None:
        # Until all of it is here, what we hold is of no step.
        self.position.usable = False
        if mend:
            self._protected.receive_named(self._damaged, source)
        else:
            self._damaged = ()
            self._protected.receive(source)
        self._damaged = ()

    def _follow(self, leaders: list[View]) -> None:
        """Come to where the foremost are: a section that one rank has done cannot be run again with it."""
        self.joined_in_section = any(view.in_section for view in leaders)
        self.sections_to_skip = max(view.sections for view in leaders) - self.position.sections


def _exchange(mine: Offer, *, num_ranks: int, width: int) -> list[Offer]:
    """Every rank's checkpoints, of which none has more than `width`."""
    if width == 0:
        return [{}] * num_ranks
    told = torch.full((width, 2), -1)
    for row, pair in enumerate(mine.items()):
        told[row] = torch.tensor(pair)
    everyone = [torch.empty_like(told) for _ in range(num_ranks)]
    dist.all_gather(everyone, told)
    return [{step: size for step, size in rows if step >= 0} for rows in map(torch.Tensor.tolist, everyone)]
