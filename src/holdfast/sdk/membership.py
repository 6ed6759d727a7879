"""Being in the newest world: leaving the old one, meeting the other ranks, agreeing on a state.

Which step to resume from is settled by the ranks themselves with one small exchange: the highest step that any of
them has committed. Nobody has to be asked, so the master is not in the way of a repair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from holdfast.core.ids import Address
from holdfast.errors import SpecError
from holdfast.observe.beacon import Beacon, Phase
from holdfast.sdk.channel import Line
from holdfast.sdk.checkpoints import Checkpoints, Offer, holders, newest_common
from holdfast.sdk.groups import Group, Severed
from holdfast.sdk.state import Protected
from holdfast.sdk.subgroups import Subgroups
from holdfast.sdk.views import REFUSED, UNASKED, View, exchange_offers, exchange_views
from holdfast.sdk.waits import watch_main_thread
from holdfast.wire import threads
from holdfast.wire.worker import AtLoop, Committed, Faulted, Heeded, Join, Raised, Resumed, Stranded, Stuck

LEAVE_S = 1.0
"""For all groups to end before their process; what does not is left to the kernel."""
GROUP_TIMEOUT_S = 1800.0
"""What torch.distributed takes too; a world that changed ends every wait long before."""
DUMPED_S = 900.0
"""For those who have saved their state to be stopped; on expiry they end by an error."""


@dataclass(slots=True)
class Position:
    """How far a rank is: steps committed, and where its loop is."""

    committed: int = 0
    iteration: int = -1
    """The step that the loop gave last; -1 before the first. Above `committed` where the rank had to go back."""
    sections: int = 0
    """Sections done since then."""
    uniform_since: int = 0
    """From this step on, all were made by one function and none was left out: so far back they can be made again."""
    usable: bool = False
    """Whether this rank's state is that of `committed` steps: false for a newcomer, and between the first update of
    a parameter and the commit."""


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
        self.redo_until = 0
        """Steps before this one that this rank has made are lost: its script does not come to them again."""
        self._foremost = (-1, 0)
        """Iteration and sections of the rank whose loop was furthest when this world was agreed on."""
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

    def first_iteration(self) -> int:
        """The step at which this rank's loop begins; a newcomer's at the one that the others are at, done or not."""
        here, foremost = self.position, self._foremost[0]
        return here.committed if here.iteration >= 0 or foremost < 0 else min(here.committed, foremost)

    def is_behind(self) -> bool:
        """Whether others have done the section that this rank comes to: it cannot be run again with them."""
        return (self.position.iteration, self.position.sections) < self._foremost

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
        found = self._look_for_checkpoints(join)
        mine = View(
            committed=here.committed if here.usable else -1,
            in_section=in_section,
            iteration=here.iteration,
            sections=here.sections,
            uniform_since=here.uniform_since,
            mendable=here.committed if self._damaged else -1,
            reached=here.committed,
            num_saved=UNASKED if found is None else REFUSED if isinstance(found, SpecError) else len(found),
            is_new=self._is_new,
        )
        views = exchange_views(mine, num_ranks=join.size)
        best = max(view.committed for view in views)
        if best < 0 and any(view.num_saved != UNASKED for view in views):
            views = self._restore(views, found)
            best = max(view.committed for view in views)
        # In a step, those before it can be run again; in a section, the function of the step is not known.
        if best < 0 and join.begins_anew and not join.fresh and not any(view.in_section for view in views):
            self._begin_anew(join)
            return
        if best < 0 and not (join.fresh and any(view.is_new for view in views)):
            self._strand()
        source = next(r for r, view in enumerate(views) if (view.committed == best if best >= 0 else view.is_new))
        resumed = best if best >= 0 else views[source].reached
        uniform_since = self._way_back(resumed, views)
        needy = [rank for rank, view in enumerate(views) if rank != source and view.committed < max(best, 0)]
        partly = [rank for rank in needy if best >= 0 and views[rank].mendable == best]
        if join.rank == source:
            self._protected.send([rank for rank in needy if rank not in partly])
            for rank in partly:
                self._protected.send_named(rank)
        elif join.rank in needy:
            self._take_state(source, mend=join.rank in partly)
        if not mine.is_new and resumed < here.committed:
            self.redo_until = max(self.redo_until, here.committed)
        self._foremost = max(view.place for view in views)
        here.committed, here.usable, here.uniform_since = resumed, True, uniform_since
        self._agreed, self._is_new, self._damaged = True, False, ()
        self._entered_at = time.monotonic()
        self._timings["state"] = (self._entered_at - began) * 1000

    def _begin_anew(self, join: Join) -> None:
        """As a fresh world does, from what is saved, or else from the state that a newcomer's script has made."""
        self._agree(msgspec.structs.replace(join, fresh=True), in_section=False)
        if join.rank == 0 and self.checkpoints is None:
            step = self.position.committed
            self._channel.send(Resumed(join.generation, step, f"nothing is saved: starting at step {step}"))

    def _way_back(self, step: int, views: list[View]) -> int:
        """How far all could go back; if that is not to `step`, nobody goes there."""
        since = max((view.uniform_since for view in views if not view.is_new), default=step)
        if since > step:
            self._strand()
        return since

    def _strand(self) -> NoReturn:
        self._channel.send(Stranded(self.generation))
        raise RuntimeError("no rank holds a state to resume from")

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
        offers = exchange_offers(mine, num_ranks=len(views), width=max(view.num_saved for view in views))
        common = newest_common(offers)
        if common is None and not any(view.is_new for view in views):
            self._strand()
        first = next((view.reached for view in views if view.is_new), views[0].reached)
        self._way_back(first if common is None else common, views)
        step = self.checkpoints.resume(offers, rank=self.rank, first=first)
        if self.rank == 0:
            self._channel.send(Resumed(self.generation, first if step is None else step, self.checkpoints.verdict))
        restored = holders(offers, step) if step is not None else []
        return [
            view._replace(committed=step) if step is not None and rank in restored else view
            for rank, view in enumerate(views)
        ]

    def _take_state(self, source: int, *, mend: bool) -> None:
        # Until all of it is here, what we hold is of no step, and not what the script has made either.
        self.position.usable = self._is_new = False
        if mend:
            self._protected.receive_named(self._damaged, source)
        else:
            self._damaged = ()
            self._protected.receive(source)
        self._damaged = ()
