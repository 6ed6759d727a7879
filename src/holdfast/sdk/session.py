"""`holdfast.init()` and what it returns.

Guarded functions are the unit of repair: a fault inside one ends the attempt on every rank, the world is repaired,
and the function runs again. Lines outside them run once per committed step.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from holdfast import faults
from holdfast.core.faults import PEER_LOST_MARKS
from holdfast.errors import JobError, SpecError
from holdfast.observe.beacon import Beacon, Phase
from holdfast.sdk.channel import Channel
from holdfast.sdk.data import Data
from holdfast.sdk.membership import Membership
from holdfast.sdk.once import Once
from holdfast.sdk.reducer import DataParallel
from holdfast.sdk.seeds import derive, seed_all
from holdfast.sdk.state import Protected
from holdfast.spec.worker import WorkerSpec, load_worker

P = ParamSpec("P")
R = TypeVar("R")


class Step:
    """One optimizer update."""

    def __init__(self, run: Run, number: int) -> None:
        self._run = run
        self.number = number

    @property
    def epoch(self) -> int:
        return self._run.epoch_of(self.number)

    def batch(self) -> Any:  # noqa: ANN401  whatever the dataset holds
        """This rank's samples of the step, collated."""
        batches = self._run.local_batches(self.number)
        if len(batches) != 1:
            raise SpecError("step.batch()", f"{len(batches)} micro-batches", "use step.micro_batches()")
        return batches[0]

    def micro_batches(self) -> Iterator[Any]:
        """This rank's micro-batches; gradients are averaged in the backward pass of the last one."""
        batches = self._run.local_batches(self.number)
        for batch in batches[:-1]:
            with self._run.without_averaging():
                yield batch
        yield from batches[-1:]


class Run:
    """This process's part in the job."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.device = torch.device("cuda", spec.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        self._spec = spec
        self._protected = Protected()
        self._nets: list[DataParallel] = []
        self._data: Data | None = None
        self._seed = 0
        self._stop_reason = ""
        self._last_fault: tuple[int, str] | None = None
        self._beacon = Beacon(spec.beacon)
        self._place: Membership | None = None
        self._committed = 0
        self._num_once = 0
        if spec.agent is not None:
            channel = Channel(spec.agent, interrupt=self._interrupt)
            self._place = Membership(channel, self._protected, self._beacon, launched_at=spec.launched_at)

    # --- what a script asks -------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's rank; -1 in a standby that has no place yet."""
        return self._place.rank if self._place is not None and self._place.generation else self._spec.rank

    @property
    def local_rank(self) -> int:
        return self._spec.local_rank

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
                continue
            self._protected.add(name, value.module if isinstance(value, DataParallel) else value)
            if isinstance(value, torch.optim.Optimizer):
                value.register_step_pre_hook(self._note_update)

    def data(self, dataset: Dataset[Any], *, global_batch: int, seed: int = 0, **options: Any) -> Data:  # noqa: ANN401
        """An order of samples that depends on the seed alone, in which each is used exactly once an epoch."""
        self._seed = seed
        self._data = Data(dataset, global_batch=global_batch, seed=seed, **options)
        return self._data

    def data_parallel(self, module: nn.Module) -> DataParallel:
        """`module` with gradients averaged over all ranks."""
        net = DataParallel(module, waiting=self._show_waiting)
        self._nets.append(net)
        return net

    def once(self, function: Callable[[], R]) -> R:
        """What `function` returned on rank 0 when the job first came here.

        At the job's first start every rank runs it, and it may use collectives; a worker that comes later gets the
        result and does not run it.
        """
        self._num_once += 1
        if self._place is None:
            return function()
        return Once(self._place, key=str(self._num_once)).run(function, recover=self._recover)

    def stop(self, reason: str) -> None:
        """End the loop after this step; call it on every rank alike."""
        self._stop_reason = reason

    def log(self, **values: Any) -> None:  # noqa: ANN401  numbers or one-element tensors
        """Print one line of values, on the main rank; None is left out."""
        if self.is_main:
            shown = "  ".join(f"{name} {float(value):.6g}" for name, value in values.items() if value is not None)
            sys.stdout.write(f"step {self._steps_done()}  {shown}\n")
            sys.stdout.flush()

    # --- the loop -----------------------------------------------------------------------------------------------

    def steps(self, *, total: int | None = None, epochs: int | None = None) -> Iterator[Step]:
        """The steps of the job from the one that is due; a newcomer enters at the job's current step."""
        limit = self._limit(total, epochs)
        number = 0
        if self._place is not None:
            self._place.enter(in_section=False)
            # Those who hold the state are in a section after a step: pass that step, to come to the section.
            number = self._place.position.committed - int(self._place.joined_in_section)
            if not self._place.joined_in_section:
                self._place.sections_to_skip = 0
        while number < limit and not self._stop_reason:
            yield Step(self, number)
            number += 1
        if self._place is not None:
            self._place.leave()

    def step(self, function: Callable[[Step], R]) -> Callable[[Step], R | None]:
        """Guard a function that makes one optimizer update.

        Returns what the function returned, once the step is committed; None on a rank that had failed the step and
        received its outcome from a peer.
        """

        @functools.wraps(function)
        def guarded(step: Step) -> R | None:
            while True:
                self._enter(in_section=False)
                if step.number < self._steps_done():
                    return None
                try:
                    result = self._attempt(function, step)
                except Exception as error:  # noqa: BLE001  the boundary to the user's step
                    self._recover(error, step.number)
                else:
                    self._commit(step.number)
                    return result

        return guarded

    def section(self, *, timeout: float = 600.0) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Guard a function that commits nothing, such as an evaluation: after a fault it runs again.

        Returns None on a rank that has not done it when others have: a newcomer, or one that a fault held up.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
            @functools.wraps(function)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
                while True:
                    self._enter(in_section=True)
                    if self._skips_section():
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

    # --- used by Step -------------------------------------------------------------------------------------------

    def epoch_of(self, number: int) -> int:
        return self._data.epoch_of(number) if self._data is not None else 0

    def local_batches(self, number: int) -> list[Any]:
        if self._data is None:
            raise SpecError("step.batch()", "no data", "call run.data(...) first")
        return self._data.batches(number, rank=self.rank, size=self.world_size)

    @contextlib.contextmanager
    def without_averaging(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for net in self._nets:
                stack.enter_context(net.no_sync())
            yield

    # --- attempts -----------------------------------------------------------------------------------------------

    def _attempt(self, function: Callable[[Step], R], step: Step) -> R:
        self._beacon.step = step.number
        self._beacon.show(Phase.WORKING)
        self._protected.remember()
        share = 1.0 / self.world_size
        if self._data is not None:
            share = self._data.share(step.number, rank=self.rank, size=self.world_size)
        for net in self._nets:
            net.share = share
        seed_all(derive(self._seed, step.number, self.rank))
        return function(step)

    def _commit(self, number: int) -> None:
        self._committed = number + 1
        self._protected.forget()
        if self._place is not None:
            position = self._place.position
            position.committed, position.sections, position.usable = number + 1, 0, True
            self._place.announce_commit(number)
        self._beacon.show(Phase.OUTSIDE)

    def _recover(self, error: Exception, number: int) -> None:
        """Decide what an exception in a guarded function means; returns when a new world is known."""
        for net in self._nets:
            net.reset()
        place = self._place
        if place is None:
            raise error
        interrupted = place.is_outdated()
        kind = faults.kind_of(error)
        if kind is not None:
            if self._last_fault == (number, repr(error)):
                place.report_end(error)
                raise error
            self._last_fault = (number, repr(error))
            if isinstance(error, faults.MemoryDamaged):
                place.position.usable = False
        elif _is_communication(error):
            kind = "communication"
        elif not interrupted:
            place.report_end(error)
            raise error
        self._protected.put_back()
        if kind is None or place.is_outdated():
            return
        try:
            place.report_fault(kind, "".join(traceback.format_exception(error)))
        except JobError:
            raise error from None

    def _note_update(self, *_: object) -> None:
        """From here to the commit the state is neither that of this step nor of the next."""
        if self._place is not None:
            self._place.position.usable = False

    # --- sections and worlds ------------------------------------------------------------------------------------

    def _skips_section(self) -> bool:
        place = self._place
        if place is None or place.sections_to_skip == 0:
            return False
        place.sections_to_skip -= 1
        place.position.sections += 1
        return True

    def _end_section(self) -> None:
        if self._place is not None:
            self._place.position.sections += 1
        self._protected.forget()
        self._beacon.show(Phase.OUTSIDE)

    def _enter(self, *, in_section: bool) -> None:
        if self._place is not None and self._place.is_outdated():
            for net in self._nets:
                net.reset()
            self._place.enter(in_section=in_section)

    def _interrupt(self) -> None:
        if self._place is not None:
            self._place.sever()

    def _show_waiting(self, waiting: bool) -> None:
        self._beacon.show(Phase.WAITING if waiting else Phase.WORKING)

    def _steps_done(self) -> int:
        return self._place.position.committed if self._place is not None else self._committed

    def _limit(self, total: int | None, epochs: int | None) -> int:
        if epochs is not None and self._data is not None:
            return epochs * self._data.steps_per_epoch
        if total is None:
            raise SpecError("run.steps()", f"epochs={epochs}", "say total=N, or epochs=N with run.data(...)")
        return total


def _is_communication(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, dist.DistError) or any(mark in text for mark in PEER_LOST_MARKS)


def init() -> Run:
    """Join the job around this process; without one, train in this process alone."""
    return Run(load_worker())
