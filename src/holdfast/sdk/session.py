"""`holdfast.init()` and what it returns.

Guarded functions are the unit of repair: a fault inside one ends the attempt on every rank, the world is repaired,
and the function runs again. Lines outside them run once per committed step.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, IterableDataset, default_collate

from holdfast import faults
from holdfast.errors import JobError, SpecError
from holdfast.observe import beacon
from holdfast.observe.beacon import Beacon, Cost, Phase
from holdfast.sdk.allocation import keep_freed_memory
from holdfast.sdk.channel import Channel, Line
from holdfast.sdk.checkpoints import Checkpoints
from holdfast.sdk.data import Data
from holdfast.sdk.feed import Feed
from holdfast.sdk.groups import Severed, gpu_of
from holdfast.sdk.membership import Membership
from holdfast.sdk.notice import Notice
from holdfast.sdk.once import Once
from holdfast.sdk.ordered import Ordered
from holdfast.sdk.reducer import DataParallel
from holdfast.sdk.seeds import derive, seed_all
from holdfast.sdk.state import Protected
from holdfast.sdk.step import Step
from holdfast.sdk.stream import Stream
from holdfast.sdk.subgroups import Subgroups
from holdfast.sdk.unguarded import calling_line, explain_failures, is_communication
from holdfast.sdk.waits import take_over_waits
from holdfast.spec.worker import WorkerSpec

P = ParamSpec("P")
R = TypeVar("R")


class Run:
    """This process's part in the job."""

    role = "worker"

    def __init__(self, spec: WorkerSpec, *, connect: Callable[[Callable[[], None]], Line] | None = None) -> None:
        self.device = _device(spec.local_rank)
        self._spec = spec
        self._protected = Protected()
        self._seed = 0
        self._stop_reason = ""
        self._last_fault: tuple[int, str] | None = None
        self._beacon = Beacon(spec.beacon)
        self._feed = Feed(self._beacon, lambda: (self.rank, self.world_size))
        self._notice = notice = Notice(self._beacon)
        self._ordered = Ordered(spec.beacon)
        if spec.may_tune_allocator:
            keep_freed_memory()
        self._place: Membership | None = None
        self._checkpoints: Checkpoints | None = None
        self._committed = 0
        self._num_once = 0
        self._is_guarded = False
        self._has_entered = False
        self._has_warned = False
        self._is_updating = False
        """From the first update of a parameter to the commit."""
        self._maker: Callable[[Step], Any] | None = None
        """The function that made the last step."""
        if spec.agent is not None:
            agent = spec.agent
            connect = lambda interrupt: Channel(agent, interrupt=interrupt, notice=notice.give, heed=notice.heed)  # noqa: E731
        if connect is not None:
            channel = connect(self._interrupt)
            subgroups = Subgroups(may_be_asked=lambda: not self._is_guarded and not self._has_entered)
            subgroups.take_over()
            self._place = notice.place = place = Membership(
                channel,
                self._protected,
                self._beacon,
                find_gpu=self._find_gpu,
                subgroups=subgroups,
                launched_at=spec.launched_at,
            )
            atexit.register(self._place.leave)
            explain_failures(lambda: self._is_guarded)
            may_expire = lambda: not place.uses_nccl()  # noqa: E731
            take_over_waits(self._beacon, note=self._note_wait, is_cut=place.is_cut, may_expire=may_expire)
            beacon.forget_steps()

    def meet(self) -> None:
        """Be in a world, so that `torch.distributed` works from here on."""
        if self._place is not None:
            with self._guard():
                self._place.meet_somewhere()

    # --- what a script asks -------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's rank; -1 in a standby that has no place yet."""
        return self._place.rank if self._place is not None and self._place.generation else self._spec.rank

    @property
    def local_rank(self) -> int:
        place = self._place
        return place.local_rank if place is not None and place.generation else self._spec.local_rank

    @property
    def world_size(self) -> int:
        return self._place.size if self._place is not None and self._place.generation else self._spec.world_size

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def protect(self, **objects: Any) -> None:  # noqa: ANN401  anything with a state
        """Name what must survive: modules, optimizers, and anything with `state_dict` and `load_state_dict`."""
        for name, value in objects.items():
            if isinstance(value, Data):
                # Its place follows from the step.
                continue
            self._protected.add(name, value.module if isinstance(value, DataParallel) else value)
            if isinstance(value, torch.optim.Optimizer):
                value.register_step_pre_hook(self._note_update)

    def checkpoint(self, directory: str | os.PathLike[str], *, every: int, keep: int = 2) -> None:
        """Save everything protected after every so many steps, and go on from there if all processes are lost."""
        if self._checkpoints is not None or self._has_entered:
            raise SpecError("run.checkpoint()", str(directory), "call it once, before the loop")
        self._checkpoints = Checkpoints(directory, every=every, keep=keep, protected=self._protected)
        self._notice.can_save = True
        if self._place is not None:
            self._place.checkpoints = self._checkpoints

    def data(
        self,
        dataset: Dataset[Any],
        *,
        global_batch: int,
        seed: int = 0,
        micro_batch: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        num_workers: int = 0,
        prefetch: int = 2,
        collate: Callable[[list[Any]], Any] = default_collate,
        sampler: Any = None,  # noqa: ANN401  an iterable of indices with a state
    ) -> Data | Stream:
        """What `step.batch()` takes its samples from.

        A map-style dataset is read in an order that depends on the seed alone, each sample exactly once an epoch. An
        IterableDataset, or a sampler, that has `state_dict` and `load_state_dict` keeps its own order and place.
        """
        self._seed = seed
        if sampler is not None or isinstance(dataset, IterableDataset):
            if num_workers:
                raise SpecError("data(num_workers=)", num_workers, "a dataset or sampler with a state is read in place")
            self._feed.data = Stream(
                dataset, sampler=sampler, global_batch=global_batch, micro_batch=micro_batch, collate=collate
            )
            return self._feed.data
        self._feed.data = Data(
            dataset,
            global_batch=global_batch,
            seed=seed,
            micro_batch=micro_batch,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=num_workers,
            prefetch=prefetch,
            collate=collate,
        )
        return self._feed.data

    def data_parallel(self, module: nn.Module, *, loss: Literal["mean", "sum"] = "mean") -> DataParallel:
        """`module` with gradients averaged over all ranks, or summed if the loss is a sum over samples."""
        net = DataParallel(module, loss=loss, check=self._check_world, waiting=self._beacon.waiting)
        self._feed.nets.append(net)
        return net

    def once(self, function: Callable[[], R]) -> R:
        """What `function` returned on rank 0 when the job first came here.

        At the job's first start every rank runs it, and it may use collectives; a worker that comes later gets the
        result and does not run it.
        """
        self._num_once += 1
        with self._guard():
            if self._place is None:
                return function()
            return Once(self._place, key=str(self._num_once)).run(function, recover=self._recover)

    def stop(self, reason: str) -> None:
        """End the loop after this step; call it on every rank alike."""
        self._stop_reason = reason

    def log(self, **values: Any) -> None:  # noqa: ANN401  numbers or one-element tensors
        """Print one line of values, on the main rank; None is left out."""
        if self.is_main:
            shown = [f"{name} {float(value):.6g}" for name, value in values.items() if value is not None]
            sys.stdout.write("  ".join([f"step {self._steps_done()}", *shown]) + "\n")
            sys.stdout.flush()

    # --- the loop -----------------------------------------------------------------------------------------------

    def steps(self, *, total: int | None = None, epochs: int | None = None, start: int = 0) -> Iterator[Step]:
        """The steps of the job from the one that is due; a newcomer enters at the job's current step.

        `start` is the first step of a job that goes on from a checkpoint, which the script has loaded.
        """
        limit = self._limit(total, epochs)
        number = self._committed = start
        is_first, self._has_entered = not self._has_entered, True
        self._notice.is_looping = True
        if self._place is not None:
            self._place.begin_at(start)
            with self._guard():
                self._place.enter(in_section=False)
            number = self._place.first_iteration()
        elif self._checkpoints is not None and is_first:
            offers = [self._checkpoints.offer(0)]
            number = self._committed = self._checkpoints.resume(offers, rank=0, first=start) or start
        self._save_if_due()
        try:
            while number < limit and not self._stop_reason:
                if self._place is not None:
                    position = self._place.position
                    position.iteration, position.sections = number, 0
                yield Step(self._feed, number)
                number += 1
            if self._place is not None:
                # Whoever dies in the last step is replaced, and the newcomer needs the others.
                self.section()(dist.barrier)()
        finally:
            self._notice.is_looping = False
            self._notice.heed()

    def step(self, function: Callable[[Step], R]) -> Callable[[Step], R | None]:
        """Guard a function that makes one optimizer update.

        Returns what the function returned, once the step is committed; None on a rank that had failed the step and
        received its outcome from a peer.
        """

        @functools.wraps(function)
        def guarded(step: Step) -> R | None:
            self._notice.heed()
            while True:
                with self._guard():
                    result = self._until_committed(function, step)
                self._save_if_due()
                self._notice.heed()
                if self._steps_done() > step.number:
                    return result

        return guarded

    def section(self, *, timeout: float = 600.0) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Guard a function that commits nothing, such as an evaluation: after a fault it runs again.

        Call it in the loop, or after it. Returns None on a rank that has not done it when others have: a newcomer, or
        one that a fault held up.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
                if not self._has_entered and self._is_guarded:
                    # In run.once, which guards it.
                    return function(*args, **kwargs)
                if not self._has_entered:
                    name = getattr(function, "__qualname__", repr(function))
                    raise SpecError("run.section()", name, "before the loop, call it in run.once(function)")
                self._notice.heed()
                with self._guard():
                    while True:
                        self._enter(in_section=True)
                        if self._skips_section():
                            self._beacon.show(Phase.OUTSIDE)
                            return None
                        self._protected.remember()
                        self._beacon.show(Phase.WORKING, limit_s=timeout)
                        try:
                            result = function(*args, **kwargs)
                        except Exception as error:  # noqa: BLE001  the boundary to the user's section
                            self._recover(error, self._steps_done())
                        else:
                            self._end_section()
                            return result

            return guarded

        return decorate

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        before, self._is_guarded = self._is_guarded, True
        try:
            yield
        finally:
            self._is_guarded = before

    # --- attempts -----------------------------------------------------------------------------------------------

    def _until_committed(self, function: Callable[[Step], R], step: Step) -> R | None:
        """Make the step, or one before it that has to be made again; None if peers have made it."""
        while True:
            self._enter(in_section=False)
            # Of a state that came from a peer, too: every rank shall have the same checkpoints.
            self._save_if_due()
            done = self._steps_done()
            if done > step.number:
                self._beacon.show(Phase.OUTSIDE)
                return None
            due = Step(self._feed, done) if self._place is not None and done < self._place.redo_until else step
            try:
                result = self._attempt(function, due)
            except Exception as error:  # noqa: BLE001  the boundary to the user's step
                self._note_changes(error)
                self._recover(error, due.number)
            else:
                self._commit(due.number, function)
                return result

    def _attempt(self, function: Callable[[Step], R], step: Step) -> R:
        self._beacon.step = step.number
        self._beacon.show(Phase.WORKING)
        self._protected.remember()
        self._is_updating = False
        self._feed.begin(step.number)
        seed_all(derive(self._seed, step.number, self.rank))
        self._ordered.strike(step.number, self._protected)
        return function(step)

    def _commit(self, number: int, function: Callable[[Step], Any]) -> None:
        self._committed = number + 1
        self._is_updating = False
        self._protected.forget()
        if self._place is not None:
            position = self._place.position
            if number != position.committed or self._maker not in (None, function):
                position.uniform_since = number
            self._maker = function
            position.committed, position.usable = number + 1, True
            self._place.announce_commit()
        self._beacon.end_step()
        self._beacon.show(Phase.OUTSIDE)

    def _save_if_due(self) -> None:
        if self._checkpoints is not None and self._checkpoints.is_due(self._steps_done()):
            self._beacon.show(Phase.OUTSIDE, cost=Cost.NOTHING)
            self._checkpoints.save(self._steps_done(), rank=self.rank, num_ranks=self.world_size)
            self._beacon.show(Phase.OUTSIDE)

    def _recover(self, error: Exception, number: int) -> None:
        """Decide what an exception in a guarded function means; returns when a new world is known."""
        self._feed.reset()
        self._is_updating = False
        place = self._place
        if place is None:
            raise error
        interrupted = place.is_outdated()
        kind = faults.kind_of(error)
        if kind is not None:
            if self._last_fault == (number, repr(error)):
                place.report_end()
                raise error
            self._last_fault = (number, repr(error))
            if isinstance(error, faults.MemoryDamaged):
                place.note_damage(error.tensors)
        elif is_communication(error):
            kind = "communication"
        elif not interrupted:
            place.report_end()
            raise error
        self._protected.put_back()
        self._notice.heed()
        if kind is None or place.is_outdated():
            return
        try:
            place.report_fault(kind, "".join(traceback.format_exception(error)))
        except JobError:
            raise error from None

    def _note_update(self, *_: object) -> None:
        """From here to the commit the state is neither that of this step nor of the next."""
        self._is_updating = True
        if self._place is not None:
            self._place.position.usable = False

    def _note_changes(self, error: Exception) -> None:
        """The same of optimizers that are not torch's; what is damaged is no update."""
        damaged = error.tensors if isinstance(error, faults.MemoryDamaged) else ()
        if self._place is not None and self._protected.changed() - set(damaged):
            self._place.position.usable = False

    def _note_wait(self) -> None:
        if self._is_updating and self.world_size > 1 and not self._has_warned:
            self._has_warned = True
            if self.is_main:
                line = calling_line()
                sys.stderr.write(
                    f"holdfast: {line}: a collective after optimizer.step(): if a worker is lost while all are in it, "
                    "nobody holds a whole state, and all start again; call it before the update, or in a section\n"
                )

    # --- sections and worlds ------------------------------------------------------------------------------------

    def _skips_section(self) -> bool:
        place = self._place
        if place is None or not place.is_behind():
            return False
        place.position.sections += 1
        return True

    def _end_section(self) -> None:
        if self._place is not None:
            self._place.position.sections += 1
            self._place.announce_commit()
        self._protected.forget()
        self._beacon.show(Phase.OUTSIDE)

    def _enter(self, *, in_section: bool) -> None:
        if self._place is not None and self._place.is_outdated():
            self._feed.reset()
            self._place.enter(in_section=in_section)

    def _find_gpu(self, local_rank: int) -> str:
        """Where nobody has launched this process, the first world tells its device: a script has seen none before."""
        if self._spec.agent is None and self._place is not None and not self._place.generation:
            self.device = _device(local_rank)
        return gpu_of(self.device)

    def _interrupt(self) -> None:
        if self._place is not None:
            self._place.sever()

    def _check_world(self) -> None:
        """What an aborted collective leaves in memory is no result, though nothing has raised."""
        if self._place is not None and self._place.is_outdated():
            raise Severed

    def _steps_done(self) -> int:
        return self._place.position.committed if self._place is not None else self._committed

    def _limit(self, total: int | None, epochs: int | None) -> int:
        if epochs is not None and self._feed.data is not None:
            return epochs * self._feed.data.steps_per_epoch
        if total is None:
            raise SpecError("run.steps()", f"epochs={epochs}", "say total=N, or epochs=N with run.data(...)")
        return total


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())
