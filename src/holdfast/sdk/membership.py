"""Being in the newest world: leaving the old one, meeting the other ranks, agreeing on a state.

Which step to resume from is settled by the ranks themselves with one small exchange: the highest step that any of
them has committed. Nobody has to be asked, so the master is not in the way of a repair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch
import torch.distributed as dist

from holdfast.core.ids import Address
from holdfast.errors import SpecError
from holdfast.observe.beacon import Beacon, Phase
from holdfast.sdk.channel import Line
from holdfast.sdk.checkpoints import Checkpoints, Offer, holders
from holdfast.sdk.groups import Group, Severed
from holdfast.sdk.state import Protected
from holdfast.sdk.subgroups import Subgroups
from holdfast.sdk.waits import watch_main_thread
from holdfast.wire import threads
from holdfast.wire.worker import AtLoop, Committed, Faulted, Heeded, Join, Raised, Resumed, Stranded, Stuck

LEAVE_S = 1.0
"""For all groups to end before their process; what does not is left to the kernel."""
GROUP_TIMEOUT_S = 1800.0
"""What torch.distributed takes too; a world that changed ends every wait long before."""
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
    new: int
    """1 if it has never agreed with anybody on a state."""


class Membership:
    """This process's place in one world after the other."""

    def __init__(
        self,
        channel: Line,
        protected: Protected,
        beacon: Beacon,
        *,
        find_gpu: Callable[[int], str],
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
        self._find_gpu = find_gpu
        """Names the GPU of this process, given its local rank in the world that it is about to join."""
        self._subgroups = subgroups
        self._group: Group | None = None
        self._announced = 0
        self._agreed = False
        self._is_new = True
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
        # Looked at once: the main thread may have left it for the new one meanwhile.
        group, newest = self._group, self._channel.newest()
        if group is not None and newest is not None and newest.generation > group.generation:
            self._cut(group)

    def cut(self) -> None:
        """End every wait on this world. Called from another thread."""
        group = self._group
        if group is not None:
            self._cut(group)

    def _cut(self, group: Group) -> None:
        group.sever()
        watch_main_thread(
            while_=lambda: group is self._group and group.is_built,
            report=lambda stack: self._channel.send(Stuck(group.generation, stack)),
        )

    def uses_nccl(self) -> bool:
        return self._group is not None and self._group.uses_nccl()

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
        """Say that this rank cannot go on in this world, and wait for the next one.

        If none comes for as long as the world's own rules have it, the fault is raised as the script's own.
        """
        generation, newest = self.generation, self._channel.newest()
        assert newest is not None, "there is a world to fail in"
        self._channel.send(Faulted(generation, self.position.committed, kind, error))
        self._beacon.show(Phase.JOINING)
        self._channel.wait_above(generation, timeout_s=newest.verdict_s)

    def report_end(self) -> None:
        """Say that this process is about to end by an exception, so that its peers' errors are understood."""
        self._channel.send(Raised())

    def announce_commit(self) -> None:
        """Say so when the first step of a world is committed here: that closes the incident."""
        if self._announced == self.generation:
            return
        self._announced = self.generation
        rerun_ms = (time.monotonic() - self._entered_at) * 1000
        timings_ms = {**self._timings, "rerun": rerun_ms}
        self._channel.send(Committed(self.generation, timings_ms, saves=self.checkpoints is not None))

    def report_heeded(self) -> None:
        """Say that what a notice asks for is done."""
        self._channel.send(Heeded())

    def leave(self) -> None:
        if self._group is not None:
            self._group.drop()
        threads.await_all(within_s=LEAVE_S)

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
        gpu = self._find_gpu(join.local_rank)
        self.rank, self.local_rank, self.size = join.rank, join.local_rank, join.size
        self._group = Group(
            generation=join.generation,
            rank=join.rank,
            size=join.size,
            store=Address(join.store_host, join.store_port),
            timeout_s=GROUP_TIMEOUT_S,
            gpu=gpu,
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
        mine = torch.tensor(
            [usable, int(in_section), here.sections, mendable, here.committed, num_saved, int(self._is_new)]
        )
        everyone = [torch.empty_like(mine) for _ in range(join.size)]
        dist.all_gather(everyone, mine)
        views = [
            View(committed, bool(section), *rest) for committed, section, *rest in map(torch.Tensor.tolist, everyone)
        ]
        best = max(view.committed for view in views)
        if best < 0 and any(view.num_saved != UNASKED for view in views):
            views = self._restore(views, found)
            best = max(view.committed for view in views)
        if best < 0 and join.begins_anew and not join.fresh and all(view.new for view in views):
            self._agree(msgspec.structs.replace(join, fresh=True), in_section=in_section)
            return
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
        here.committed, here.usable, self._agreed, self._is_new = resumed, True, True, False
        self._entered_at = time.monotonic()
        self._timings["state"] = (self._entered_at - began) * 1000

    def _dump(self, join: Join) -> None:
        """Save what the ranks have agreed on, once, and be stopped."""
        trouble = self.save_for_all() if join.rank == 0 else ""
        if trouble:
            self.report_fault("saving", trouble)
            return
        self.announce_commit()
        self._channel.wait_above(join.generation, timeout_s=DUMPED_S)

    def save_for_all(self) -> str:
        """Save this rank's state so that whatever starts next goes on from it; if that fails, returns why."""
        if self.checkpoints is None:
            return "the script does not call run.checkpoint()"
        if not self.position.usable:
            return "the update had begun"
        return self.checkpoints.dump(self.position.committed, rank=self.rank)

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
        first = views[0].reached
        step = self.checkpoints.resume(offers, rank=self.rank, first=first)
        if self.rank == 0:
            self._channel.send(Resumed(self.generation, first if step is None else step, self.checkpoints.verdict))
        restored = holders(offers, step) if step is not None else []
        return [
            replace(view, committed=step) if step is not None and rank in restored else view
            for rank, view in enumerate(views)
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
