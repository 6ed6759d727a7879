"""Which checkpoints are kept, which one counts, and what is said when they cannot be saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.errors import SpecError
from holdfast.sdk.checkpoints import Checkpoints, holders, newest_common
from holdfast.sdk.state import Protected


def fill(size: int, value: float) -> torch.nn.Module:
    layer = torch.nn.Linear(size, 2)
    torch.nn.init.constant_(layer.weight, value)
    return layer


def checkpoints(directory: Path, model: torch.nn.Module | None = None, **options: Any) -> Checkpoints:
    protected = Protected()
    protected.add("model", model or fill(3, 0.0))
    return Checkpoints(directory, **{"every": 10, "keep": 2, "protected": protected, **options})


def saved(directory: Path, rank: int = 0) -> list[str]:
    return sorted(path.name for path in (directory / f"rank_{rank}").iterdir())


def resume(mine: Checkpoints) -> int | None:
    return mine.resume([mine.offer(0)], rank=0, first=0)


# --- which step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offers", "step"),
    [
        ([{10: 2, 20: 2}, {10: 2, 20: 2}], 20),
        ([{10: 2, 20: 2}, {10: 2}], 10),
        ([{10: 2, 20: 2}, {10: 2, 30: 2}], 10),
        ([{20: 2}, {10: 2}], None),
        ([{}, {}], None),
    ],
    ids=["all have all", "one lacks the newest", "neither newest", "none common", "none at all"],
)
def test_the_newest_step_that_every_rank_has_counts(offers: list[dict[int, int]], step: int | None) -> None:
    assert newest_common(offers) == step


@pytest.mark.parametrize(
    ("offers", "step"),
    [
        ([{10: 4, 20: 4}, {10: 4, 20: 4}], 20),
        ([{10: 1, 20: 1}, {}, {}], 20),
        ([{10: 2, 20: 2}, {}], 20),
        ([{40: 2, 50: 2}, {40: 2, 50: 2}, {10: 4, 20: 4}, {}], 50),
        ([{50: 2}, {50: 2}, {50: 4}, {20: 4}], 50),
    ],
    ids=["fewer ranks", "more ranks", "a new disk", "fewer, then more again", "just when they had become more"],
)
def test_ranks_that_cannot_have_a_step_are_not_asked_for_it(offers: list[dict[int, int]], step: int) -> None:
    assert newest_common(offers) == step


# --- saving and restoring -------------------------------------------------------------------------------------


def test_the_newest_are_kept(tmp_path: Path) -> None:
    mine = checkpoints(tmp_path, keep=3)
    for step in range(10, 60, 10):
        mine.save(step, rank=0, num_ranks=1)
    assert saved(tmp_path) == ["step_00000030", "step_00000040", "step_00000050"]


def test_a_step_is_due_once(tmp_path: Path) -> None:
    mine = checkpoints(tmp_path)
    assert [step for step in range(31) if mine.is_due(step)] == [10, 20, 30]
    mine.save(10, rank=0, num_ranks=1)
    assert not mine.is_due(10)
    assert mine.is_due(20)


def test_what_was_saved_is_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints(tmp_path, fill(3, 0.5)).save(20, rank=0, num_ranks=1)
    model = fill(3, 0.0)
    mine = checkpoints(tmp_path, model)
    assert resume(mine) == 20
    assert torch.equal(model.weight, fill(3, 0.5).weight)
    assert not mine.is_due(20), "it is there already"
    assert f"resumed at step 20 from {tmp_path}" in capsys.readouterr().err


def test_an_empty_directory_begins_at_the_first_step_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(checkpoints(tmp_path / "new" / "one")) is None
    assert f"no whole checkpoint in {tmp_path}/new/one: starting at step 0" in capsys.readouterr().err


def test_what_is_newer_or_damaged_is_put_aside_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        mine = checkpoints(tmp_path, keep=9)
        for step in (10, 20, 30):
            mine.save(step, rank=0, num_ranks=2)
        (tmp_path / "rank_0" / "step_00000010").write_bytes(b"damaged")
        whole = mine.offer(0)
        assert mine.resume([whole, {20: 2}], rank=0, first=0) == 20
        assert saved(tmp_path) == ["aside", "step_00000020"]
    aside = sorted(path.name for path in (tmp_path / "rank_0" / "aside").iterdir())
    assert aside == ["step_00000010", "step_00000010.1", "step_00000030", "step_00000030.1"]
    told = capsys.readouterr().err
    assert "rank_0/step_00000010 is not used: it is cut off" in told
    assert "resumed at step 20" in told
    assert "step 30 is not whole on rank 1" in told


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    checkpoints(tmp_path, fill(3, 0.5)).save(10, rank=0, num_ranks=1)
    with pytest.raises(SpecError, match=r"checkpoint\(directory\).*step 10 in it .*model.weight is .*\[2, 5\]"):
        resume(checkpoints(tmp_path, fill(5, 0.5)))


def test_a_checkpoint_without_an_object_that_is_protected_now_is_refused(tmp_path: Path) -> None:
    checkpoints(tmp_path, fill(3, 0.5)).save(10, rank=0, num_ranks=1)
    model, protected = fill(3, 0.0), Protected()
    protected.add("model", model)
    protected.add("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SpecError, match=r"does not fit what the script protects.*optimizer"):
        resume(Checkpoints(tmp_path, every=10, keep=2, protected=protected))


def test_a_directory_that_fails_later_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = checkpoints(tmp_path)
    (tmp_path / "rank_0").write_text("in the way")
    mine.save(10, rank=0, num_ranks=1)
    told = capsys.readouterr().err
    assert told.startswith(f"holdfast: rank 0: no checkpoint of step 10 in {tmp_path}/rank_0: ")
    assert "File exists" in told
    assert not mine.is_due(10)


# --- wrong input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 0, -1, 2.5, "2", True, None])
def test_fewer_than_two_are_too_few(keep: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"checkpoint\(keep=\): .* 2 or more"):
        checkpoints(tmp_path, keep=keep)


@pytest.mark.parametrize("every", [0, -5, 1.5, "10", True, None])
def test_every_so_many_steps_is_a_number(every: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"checkpoint\(every=\): .* 1 or more"):
        checkpoints(tmp_path, every=every)


@pytest.mark.parametrize("directory", [None, 7, "", b"bytes"])
def test_a_directory_is_a_path(directory: Any) -> None:
    with pytest.raises(SpecError, match=r"checkpoint\(directory\)"):
        checkpoints(directory)


def test_a_directory_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"checkpoint\(directory\): .*can be written to: .*File exists"):
        resume(checkpoints(tmp_path / "file"))


def test_it_is_called_once_and_before_the_loop(tmp_path: Path) -> None:
    run = holdfast.init()
    run.checkpoint(tmp_path, every=10)
    with pytest.raises(SpecError, match="once, before the loop"):
        run.checkpoint(tmp_path, every=10)
    other = holdfast.init()
    next(iter(other.steps(total=1)))
    with pytest.raises(SpecError, match="once, before the loop"):
        other.checkpoint(tmp_path, every=10)


# --- one copy for all ranks -----------------------------------------------------------------------------------


def test_a_dump_counts_alone_and_one_that_fails_says_why(tmp_path: Path) -> None:
    mine = checkpoints(tmp_path / "saved")
    assert mine.dump(0, rank=0) == "no step is committed yet"
    assert not (tmp_path / "saved").exists()
    assert mine.dump(33, rank=0) == ""
    assert newest_common([mine.offer(0), {10: 2, 20: 2}]) == 33
    (tmp_path / "file").touch()
    assert checkpoints(tmp_path / "file").dump(34, rank=0).startswith(f"{tmp_path}/file/rank_0: [Errno ")


def test_dumps_of_several_ranks_do_not_meet(tmp_path: Path) -> None:
    half = tmp_path / "rank_0" / "unfinished"
    half.parent.mkdir()
    half.write_bytes(b"another rank is writing")
    mine = checkpoints(tmp_path)
    assert mine.dump(33, rank=2) == ""
    assert half.read_bytes() == b"another rank is writing"
    assert mine.offer(0) == {33: 1}


def test_a_dump_counts_on_whichever_disk_it_is(tmp_path: Path) -> None:
    """The first rank is lost with its node, and the other node saves for all; then both are there again."""
    away, near = tmp_path / "a", tmp_path / "b"
    for rank, disk in enumerate((away, near)):
        checkpoints(disk, fill(3, 0.1)).save(10, rank=rank, num_ranks=2)
    assert checkpoints(near, fill(3, 0.17)).dump(17, rank=0) == ""
    models = [fill(3, 0.0), fill(3, 0.0)]
    ranks = [checkpoints(disk, model) for disk, model in zip((away, near), models, strict=True)]
    offers = [mine.offer(rank) for rank, mine in enumerate(ranks)]
    assert offers == [{10: 2}, {10: 2, 17: 1}]
    assert [mine.resume(offers, rank=rank, first=0) for rank, mine in enumerate(ranks)] == [17, 17]
    assert holders(offers, 17) == [1], "the other one gets it from there"
    assert torch.equal(models[1].weight, fill(3, 0.17).weight)
    assert saved(near, 0) == ["step_00000017"]
    assert saved(near, 1) == ["step_00000010"]


def test_of_another_first_rank_only_whole_dumps_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = checkpoints(tmp_path, keep=9)
    mine.save(10, rank=0, num_ranks=2)
    for step in (20, 30):
        assert mine.dump(step, rank=0) == ""
    damaged = tmp_path / "rank_0" / "step_00000030"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-40] + b"!" + content[-39:])
    assert mine.offer(1) == {20: 1}
    assert f"rank 1: {damaged} is not used: the checksum of its content is wrong" in capsys.readouterr().err
    assert mine.resume([{10: 2}, {20: 1}], rank=1, first=0) == 20
    assert damaged.exists(), "it is not this rank's to move"


def test_a_step_that_a_rank_has_from_another_world_is_taken_from_a_peer() -> None:
    offers = [{20: 1}, {20: 2}, {10: 2}]
    assert newest_common(offers) == 20
    assert holders(offers, 20) == [0]
