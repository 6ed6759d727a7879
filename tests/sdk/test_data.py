"""Which samples a step uses: each exactly once an epoch, in an order that no world size changes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from holdfast.errors import SpecError
from holdfast.sdk.data import Data
from holdfast.sdk.stream import Stream


class Noisy(Dataset):
    """A number and noise that is drawn when it is read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(torch.rand(()))


def ids(data: Data, step: int, size: int) -> list[list[int]]:
    return [data.local_ids(step, rank=rank, size=size) for rank in range(size)]


@given(
    num_samples=st.integers(1, 60), batch=st.integers(1, 20), sizes=st.lists(st.integers(1, 5), min_size=1), seed=...
)
def test_every_sample_is_used_once_an_epoch_however_the_world_changes(
    num_samples: int, batch: int, sizes: list[int], seed: int
):
    data = Data(TensorDataset(torch.zeros(num_samples)), global_batch=batch, seed=seed)
    for epoch in range(2):
        used: Counter[int] = Counter()
        for at in range(data.steps_per_epoch):
            step = epoch * data.steps_per_epoch + at
            parts = ids(data, step, sizes[step % len(sizes)])
            used.update(index for part in parts for index in part)
            assert [index for part in parts for index in part] == data.local_ids(step, rank=0, size=1)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            shares = [data.share(step, rank=rank, size=len(parts)) for rank in range(len(parts))]
            assert sum(shares) == pytest.approx(1.0)
            assert [round(share * sum(map(len, parts))) for share in shares] == [len(part) for part in parts]
        assert used == Counter(range(num_samples))


def test_epochs_differ_and_seeds_differ_and_without_shuffling_it_is_as_stored():
    dataset = TensorDataset(torch.zeros(64))
    first, other = Data(dataset, global_batch=64, seed=1), Data(dataset, global_batch=64, seed=2)
    assert ids(first, 0, 1) != ids(first, 1, 1)
    assert ids(first, 0, 1) != ids(other, 0, 1)
    assert ids(Data(dataset, global_batch=64, shuffle=False), 0, 1) == [list(range(64))]


def test_a_rest_can_be_dropped():
    data = Data(TensorDataset(torch.zeros(10)), global_batch=4, drop_last=True)
    assert data.steps_per_epoch == 2
    assert [len(part) for part in ids(data, 1, 2)] == [2, 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_drawn_for_a_sample_does_not_depend_on_who_reads_it(num_workers: int):
    calm = Data(Noisy(), global_batch=8, seed=3)
    data = Data(Noisy(), global_batch=8, seed=3, num_workers=num_workers)
    for step in (0, 1, 1, 2, 5, 2):
        expected = calm.batches(step, rank=0, size=1)[0]
        parts = [data.batches(step, rank=rank, size=2)[0] for rank in (0, 1)]
        assert torch.equal(torch.cat([part[0] for part in parts]), expected[0])
        assert torch.equal(torch.cat([part[1] for part in parts]), expected[1])


def test_reading_does_not_disturb_the_numbers_that_a_step_draws():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    Data(Noisy(), global_batch=8).batches(0, rank=0, size=1)
    assert torch.equal(torch.rand(3), expected)


def test_micro_batches_are_cut_from_the_ranks_own_part():
    data = Data(Noisy(), global_batch=10, micro_batch=2)
    assert [len(batch[0]) for batch in data.batches(0, rank=1, size=2)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"global_batch": 0}, "global_batch"),
        ({"global_batch": 4, "micro_batch": 0}, "micro_batch"),
        ({"global_batch": 40, "drop_last": True}, "drop_last"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(options: dict, named: str):
    with pytest.raises(SpecError, match=named):
        Data(Noisy(), **options)


def test_who_reads_disturbs_nobodys_random_numbers():
    def draw(num_workers: int, *, after: int) -> float:
        data = Data(Noisy(), global_batch=4, num_workers=num_workers)
        for step in range(after):
            data.batches(step, rank=0, size=1)
        torch.manual_seed(7)
        data.batches(after, rank=0, size=1)
        return float(torch.rand(()))

    assert len({draw(0, after=0), draw(2, after=0), draw(2, after=3)}) == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_drawn_for_a_batch_does_not_depend_on_what_was_read_before(num_workers: int):
    def collate(samples: list[tuple[int, float]]) -> float:
        return float(torch.rand(()))

    def read(steps: list[int]) -> list[float]:
        data = Data(Noisy(), global_batch=4, num_workers=num_workers, collate=collate)
        return [data.batches(step, rank=0, size=1)[0] for step in steps]

    assert read([0, 1, 2])[2] == read([2])[0]
    assert len(set(read([0, 1, 2]))) == 3


def test_readers_end_with_their_worker(tmp_path: Path):
    """They have copies of its connections: while one of them lives, nobody would notice that it is gone."""
    script = tmp_path / "read.py"
    script.write_text(
        "import os, time\n"
        "from holdfast.sdk.data import Data\n"
        "class Slow:\n"
        "    def __len__(self): return 100\n"
        "    def __getitem__(self, index):\n"
        "        if index: time.sleep(600)\n"
        "        return index\n"
        "data = Data(Slow(), global_batch=1, shuffle=False, num_workers=1)\n"
        "data.batches(0, rank=0, size=1)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    reader, writer = os.pipe()
    with open(reader, "rb") as until_all_are_gone:
        ended = subprocess.run([sys.executable, script], pass_fds=[writer], timeout=60, check=False)
        os.close(writer)
        assert ended.returncode == -signal.SIGKILL
        gone, _, _ = select.select([until_all_are_gone], [], [], 3.0)
    assert gone, "a reader holds what its worker had"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_rank_without_a_sample_reads_one_that_does_not_count(num_workers: int, capfd: pytest.CaptureFixture[str]):
    ranks = [Data(Noisy(), global_batch=6, micro_batch=4, num_workers=num_workers) for _ in range(3)]
    read = [[data.batches(step, rank=rank, size=3) for step in (2, 3)] for rank, data in enumerate(ranks)]
    assert [len(pieces) for steps in read for pieces in steps] == [1] * 6
    last = [pieces[0][0].tolist() for _, pieces in read]
    assert last[2] == last[0]
    assert last[:2] == ids(ranks[0], 3, 3)[:2]
    assert [data.share(3, rank=rank, size=3) for rank, data in enumerate(ranks)] == [0.5, 0.5, 0.0]
    assert [data.piece_sizes(3, rank=rank, size=3) for rank, data in enumerate(ranks)] == [[1], [1], [1]]
    assert capfd.readouterr().err.count("a step of each epoch has 2 samples for 3 ranks") == 1


def test_nor_does_what_it_takes_from_a_stream():
    stream = Stream(Counting(), global_batch=2)
    assert stream.batches(0, rank=2, size=3)[0].tolist() == [0]
    assert [stream.share(0, rank=rank, size=3) for rank in range(3)] == [0.5, 0.5, 0.0]


# --- an order of the user's own -------------------------------------------------------------------------------


class Counting(IterableDataset):
    """Endless numbers; its place is in its state."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Backwards:
    """A sampler of ten indices, with a state."""

    def __init__(self) -> None:
        self.left = 10

    def __iter__(self) -> Iterator[int]:
        self.left = self.left or 10
        while self.left:
            self.left -= 1
            yield self.left

    def state_dict(self) -> dict[str, int]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.left = state["left"]


def test_a_stream_goes_back_to_a_place_it_remembers():
    stream = Stream(Counting(), global_batch=8)
    stream.batches(0, rank=0, size=2)
    state = stream.state_dict()
    first = stream.batches(1, rank=0, size=2)
    stream.load_state_dict(state)
    assert first[0].tolist() == stream.batches(1, rank=0, size=2)[0].tolist() == [4, 5, 6, 7]


def test_a_sampler_says_what_is_read_and_begins_again_at_its_end():
    stream = Stream(TensorDataset(torch.arange(10)), sampler=Backwards(), global_batch=4, micro_batch=2)
    read = [[batch[0].tolist() for batch in stream.batches(step, rank=0, size=1)] for step in range(4)]
    assert read == [[[9, 8], [7, 6]], [[5, 4], [3, 2]], [[1, 0]], [[9, 8], [7, 6]]]


def test_a_stream_needs_a_state_and_has_no_epochs():
    with pytest.raises(SpecError, match="state_dict"):
        Stream(range(10), global_batch=4)
    with pytest.raises(SpecError, match="total=N"):
        _ = Stream(Counting(), global_batch=4).steps_per_epoch
