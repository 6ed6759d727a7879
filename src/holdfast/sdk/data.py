"""Data that is read exactly once: which samples a step uses depends on the seed and the step alone.

Position p of step s is the same sample whether three or four workers run it. A repaired step reads the same samples
again; a prefetched batch is kept unless rank or world size changed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from holdfast.errors import SpecError
from holdfast.sdk.seeds import derive, seed_all, undisturbed

PR_SET_PDEATHSIG = 1


class Data:
    """A map-style dataset in an order of its own per epoch."""

    def __init__(
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
        collate: Any = default_collate,  # noqa: ANN401  any collate function
    ) -> None:
        self.size = len(dataset)  # type: ignore[arg-type]
        if global_batch < 1 or self.size < 1:
            raise SpecError("data(global_batch=)", global_batch, "it must be 1 or more, and the dataset not empty")
        if drop_last and self.size < global_batch:
            raise SpecError("data(drop_last=)", drop_last, f"the dataset has {self.size} samples, less than one batch")
        if micro_batch is not None and micro_batch < 1:
            raise SpecError("data(micro_batch=)", micro_batch, "it must be 1 or more")
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.seed = seed
        self._dataset = dataset
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._num_workers = num_workers
        self._prefetch = prefetch
        self._collate = collate
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))
        self._iterator: Iterator[Any] | None = None
        self._expected: tuple[int, int, int] | None = None
        self._last: tuple[int, int, int] | None = None
        self._place: tuple[int, int] | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.size // self.global_batch if self._drop_last else -(-self.size // self.global_batch)

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def local_ids(self, step: int, *, rank: int, size: int) -> list[int]:
        """This rank's consecutive part of a step's samples; parts differ by one sample at most."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        first, last = self._part(step, rank, size)
        offset = batch * self.global_batch
        ids: list[int] = self._epoch_order(epoch)[offset + first : offset + last].tolist()
        return ids

    def share(self, step: int, *, rank: int, size: int) -> float:
        """This rank's part of the global batch."""
        first, last = self._part(step, rank, size)
        return (last - first) / self._num_samples(step)

    def piece_sizes(self, step: int, *, rank: int, size: int) -> list[int]:
        """How many samples each of this rank's micro-batches has."""
        first, last = self._part(step, rank, size)
        return cut(last - first or 1, self.micro_batch)

    def ids_to_read(self, step: int, *, rank: int, size: int) -> list[int]:
        """This rank's part; where it has none, a sample of the first rank, which does not count here.

        So it does all that the others do, and none waits for another in vain.
        """
        return self.local_ids(step, rank=rank, size=size) or self.local_ids(step, rank=0, size=size)[:1]

    def _part(self, step: int, rank: int, size: int) -> tuple[int, int]:
        return deal(self._num_samples(step), rank=rank, size=size)

    def _num_samples(self, step: int) -> int:
        batch = step % self.steps_per_epoch
        return min(self.global_batch, self.size - batch * self.global_batch)

    def batches(self, step: int, *, rank: int, size: int) -> list[Any]:
        """This rank's micro-batches of a step; read again when it is run again, as it may have changed them."""
        key = (step, rank, size)
        if self._last == key:
            return self._fetch(step, self.ids_to_read(step, rank=rank, size=size))
        self._take_place(step, rank, size)
        batches = self._load(key)
        self._last = key
        return batches

    def _take_place(self, step: int, rank: int, size: int) -> None:
        """Say where this rank goes on if it comes into the middle, or if samples are dealt to more or fewer ranks."""
        smallest = min(self._num_samples(0), self._num_samples(self.steps_per_epoch - 1))
        if self._place != (rank, size) and rank == 0 and smallest < size:
            few = f"a step of each epoch has {smallest} samples for {size} ranks"
            sys.stderr.write(f"holdfast: data(global_batch=): {few}: the others add nothing to it\n")
        if self._place != (rank, size) and step:
            epoch, batch = divmod(step, self.steps_per_epoch)
            completed = batch * self.global_batch
            left = -(-(self.size - completed) // size)
            sys.stderr.write(f"Load epoch = {epoch}, completed num = {completed}, num_samples = {left}\n")
            sys.stderr.flush()
        self._place = (rank, size)

    # --- loading ------------------------------------------------------------------------------------------------

    def _epoch_order(self, epoch: int) -> torch.Tensor:
        if self._order[0] != epoch:
            if self._shuffle:
                generator = torch.Generator().manual_seed(derive(self.seed, epoch))
                self._order = (epoch, torch.randperm(self.size, generator=generator))
            else:
                self._order = (epoch, torch.arange(self.size))
        return self._order[1]

    def _load(self, key: tuple[int, int, int]) -> list[Any]:
        step, rank, size = key
        if self._num_workers == 0:
            return self._fetch(step, self.ids_to_read(step, rank=rank, size=size))
        if self._iterator is None or self._expected != key:
            self._iterator = iter(self._loader(step, rank, size))
        self._expected = (step + 1, rank, size)
        batches: list[Any] = next(self._iterator)
        return batches

    def _fetch(self, step: int, ids: list[int]) -> list[Any]:
        return _Fetcher(self._dataset, self._collate, self.seed, self.micro_batch)[(self.epoch_of(step), ids)]

    def _loader(self, step: int, rank: int, size: int) -> DataLoader[Any]:
        return DataLoader(
            _Fetcher(self._dataset, self._collate, self.seed, self.micro_batch),
            # In a cycle, readers would not be ended in order, which takes seconds.
            sampler=_Steps(weakref.proxy(self), step, rank, size),
            batch_size=None,
            num_workers=self._num_workers,
            prefetch_factor=self._prefetch,
            # A thread that ends would take its readers along.
            worker_init_fn=_end_with_worker if threading.current_thread() is threading.main_thread() else None,
            # Else what the readers begin with is drawn from the numbers of the step in which they are started.
            generator=torch.Generator().manual_seed(derive(self.seed, rank)),
        )


def deal(count: int, *, rank: int, size: int) -> tuple[int, int]:
    """From which to which of so many samples a rank has; where they are fewer than ranks, the first have one each."""
    if count < size:
        return min(rank, count), min(rank + 1, count)
    return count * rank // size, count * (rank + 1) // size


def cut(count: int, width: int | None) -> list[int]:
    """The sizes of pieces of so many samples: all of `width`, but for the last."""
    width = width or count or 1
    return [min(width, count - at) for at in range(0, count, width)]


def _end_with_worker(_: int) -> None:
    """Have this reader end with its worker at once: it has copies of its connections, and would hide its death."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)


class _Steps:
    """An endless sampler: the ids of one step after the other."""

    def __init__(self, data: Data, step: int, rank: int, size: int) -> None:
        self._data, self._step, self._rank, self._size = data, step, rank, size

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        step = self._step
        while True:
            yield self._data.epoch_of(step), self._data.ids_to_read(step, rank=self._rank, size=self._size)
            step += 1


class _Fetcher(Dataset[list[Any]]):
    """Reads the samples of a step; what a sample's transforms draw depends on (seed, epoch, index) alone."""

    def __init__(self, dataset: Dataset[Any], collate: Any, seed: int, micro_batch: int | None) -> None:  # noqa: ANN401
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._micro_batch = micro_batch

    def __getitem__(self, key: tuple[int, list[int]]) -> list[Any]:
        epoch, ids = key
        size = self._micro_batch or len(ids) or 1
        if isinstance(self._dataset, TensorDataset) and self._collate is default_collate:
            # No code of the user's runs for a sample, so nothing is drawn, and whole batches can be taken.
            parts = (torch.tensor(ids[at : at + size]) for at in range(0, len(ids), size))
            return [list(self._dataset[part]) for part in parts]
        with undisturbed():
            samples = [self._sample(epoch, index) for index in ids]
            # Its numbers go on from those of the last sample: they too depend on what is read alone.
            return [self._collate(samples[at : at + size]) for at in range(0, len(samples), size)]

    def _sample(self, epoch: int, index: int) -> Any:  # noqa: ANN401
        seed_all(derive(self._seed, epoch, index), devices=False)
        return self._dataset[index]
