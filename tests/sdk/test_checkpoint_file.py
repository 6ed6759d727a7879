"""A checkpoint is read back bit for bit, or known to be damaged."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.sdk import checkpoint_file
from holdfast.sdk.checkpoint_file import BLOCK_BYTES, UNFINISHED, Damaged

STATE: dict[str, Any] = {
    "large": torch.arange(BLOCK_BYTES // 4 + 7, dtype=torch.int32),
    "small": [torch.tensor(1.5), torch.randn(3, 5).to(torch.bfloat16), torch.empty(0), torch.tensor([True, False])],
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "plain": (1, "two", None, 0.1, {"lr": 1e-3}),
}


def save(path: Path, state: Any = STATE) -> bytes:
    checkpoint_file.write(path, state, step=7, num_ranks=4)
    return path.read_bytes()


def tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    return [state["large"], *state["small"], state["turned"]]


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path / "file")
    header = checkpoint_file.check(tmp_path / "file", step=7)
    assert (header.step, header.num_ranks) == (7, 4)
    back = checkpoint_file.read(tmp_path / "file")
    assert back["plain"] == STATE["plain"]
    for mine, theirs in zip(tensors(back), tensors(STATE), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def test_the_same_state_gives_the_same_file(tmp_path: Path) -> None:
    assert save(tmp_path / "one") == save(tmp_path / "two")


def test_a_state_without_tensors(tmp_path: Path) -> None:
    save(tmp_path / "file", {"best": 0.5})
    checkpoint_file.check(tmp_path / "file", step=7)
    assert checkpoint_file.read(tmp_path / "file") == {"best": 0.5}


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole = save(path, {"weights": torch.arange(5.0), "step": 3})
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(Damaged):
            checkpoint_file.check(path, step=7)
        with pytest.raises(Damaged):
            checkpoint_file.read(path)


def test_every_cut_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole = save(path, {"weights": torch.arange(5.0), "step": 3})
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            checkpoint_file.check(path, step=7)
        with pytest.raises(Damaged):
            checkpoint_file.read(path)


@pytest.mark.parametrize("at", [-40, BLOCK_BYTES // 2, BLOCK_BYTES])
def test_damage_far_into_a_large_file_is_seen(at: int, tmp_path: Path) -> None:
    damaged = bytearray(save(tmp_path / "file"))
    damaged[at] ^= 1
    (tmp_path / "file").write_bytes(damaged)
    with pytest.raises(Damaged, match="checksum of its content"):
        checkpoint_file.check(tmp_path / "file", step=7)


def test_what_follows_the_end_and_another_step_are_seen(tmp_path: Path) -> None:
    whole = save(tmp_path / "file")
    with pytest.raises(Damaged, match="it is of step 7"):
        checkpoint_file.check(tmp_path / "file", step=8)
    (tmp_path / "file").write_bytes(whole + b"x")
    with pytest.raises(Damaged, match="follows"):
        checkpoint_file.check(tmp_path / "file", step=7)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("step 7 of a very different program, and quite long\n" * 10)
    with pytest.raises(Damaged, match="does not begin like"):
        checkpoint_file.check(tmp_path / "file", step=7)


def test_a_file_that_is_there_is_replaced_at_once_or_not_at_all(tmp_path: Path) -> None:
    before = save(tmp_path / "file")
    after = save(tmp_path / "file", {"other": 1})
    assert (tmp_path / "file").read_bytes() == after != before
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    before = save(tmp_path / "file")
    (tmp_path / UNFINISHED).mkdir()
    with pytest.raises(IsADirectoryError) as failure:
        save(tmp_path / "file", {"other": 1})
    assert failure.value.errno == errno.EISDIR
    assert (tmp_path / "file").read_bytes() == before


def test_what_a_killed_process_left_unfinished_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).write_bytes(b"x" * (4 * BLOCK_BYTES))
    save(tmp_path / "file", {"other": 1})
    checkpoint_file.check(tmp_path / "file", step=7)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
