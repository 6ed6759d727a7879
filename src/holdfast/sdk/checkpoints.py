"""Checkpoints: when to save, which to keep, and which of them a job that has lost every process goes on from.

Each rank saves its own. What counts is the newest step that every rank has whole; what only some of them have is kept
aside. A dump is a copy for all: it counts wherever one rank finds it. While any process holds the state, nobody looks
at the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

from holdfast.errors import SpecError
from holdfast.sdk import checkpoint_file
from holdfast.sdk.checkpoint_file import Damaged
from holdfast.sdk.state import Protected

NAME = re.compile(r"step_(\d+)")
ASIDE = "aside"
MIN_KEPT = 2
"""While one rank is still writing its newest, the others may have theirs: the one before is what all of them have."""

Offer = Mapping[int, int]
"""Steps that a rank has whole, each with the number of ranks of the world that saved it."""


def missing(offers: Sequence[Offer], step: int) -> list[int]:
    """Ranks that ought to have a step that others have: those that saved it, unless they have nothing at all.

    A rank that the world did not have then, or whose disk is new, takes the state from a peer. What one rank has saved
    for all is missed by nobody: who was the first then need not be it now.
    """
    num_ranks = _num_savers(offers, step)
    if num_ranks == 1:
        return []
    return [rank for rank, offer in enumerate(offers[:num_ranks]) if offer and step not in offer]


def holders(offers: Sequence[Offer], step: int) -> list[int]:
    """Ranks that have a step from the same world; one that has it from another takes it from them all the same."""
    num_ranks = _num_savers(offers, step)
    return [rank for rank, offer in enumerate(offers) if offer.get(step) == num_ranks]


def _num_savers(offers: Sequence[Offer], step: int) -> int:
    return min(offer[step] for offer in offers if step in offer)


def newest_common(offers: Sequence[Offer]) -> int | None:
    """The newest step that no rank is missing."""
    steps = sorted({step for offer in offers for step in offer}, reverse=True)
    return next((step for step in steps if not missing(offers, step)), None)


class Checkpoints:
    """One directory with a directory for each rank."""

    def __init__(self, directory: str | os.PathLike[str], *, every: int, keep: int, protected: Protected) -> None:
        if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
            raise SpecError("checkpoint(directory)", directory, "it must be the path of a directory")
        _expect_number("checkpoint(every=)", every, least=1)
        _expect_number("checkpoint(keep=)", keep, least=MIN_KEPT)
        # The script may change its working directory later.
        self._directory = Path(directory).absolute()
        self._every = every
        self._keep = keep
        self._protected = protected
        self._newest = 0
        """The step that was last saved or restored here, or could not be saved."""
        self._whole: dict[int, Path] = {}
        """What this rank has offered."""
        self.verdict = ""
        """What the job goes on from, in words; on rank 0, once it has looked."""

    # --- while training -----------------------------------------------------------------------------------------

    def is_due(self, step: int) -> bool:
        return step > 0 and step % self._every == 0 and step != self._newest

    def save(self, step: int, *, rank: int, num_ranks: int) -> bool:
        """Save the state, which is that of `step` committed steps; if that fails, say so and let the training go on."""
        try:
            self._write(step, rank=rank, num_ranks=num_ranks)
        except OSError as error:
            home = self._home(rank)
            _say(f"rank {rank}: no checkpoint of step {step} in {home}: {error}; training goes on without it")
            return False
        return True

    def dump(self, step: int, *, rank: int) -> str:
        """Save the state for all ranks: whoever finds it has it, and that is enough. If that fails, returns why.

        Several ranks may do so at a time.
        """
        if step == 0:
            return "no step is committed yet"
        try:
            self._write(step, rank=0, num_ranks=1, writer=rank)
        except OSError as error:
            return f"{self._home(0)}: {error}"
        _say(f"step {step} is saved in {self._home(0)}")
        return ""

    def _write(self, step: int, *, rank: int, num_ranks: int, writer: int = 0) -> None:
        self._newest = step
        home = self._home(rank)
        _make(home)
        path, state = home / f"step_{step:08}", self._protected.whole()
        checkpoint_file.write(path, state, step=step, num_ranks=num_ranks, writer=writer)
        files = self._files(rank)
        for old in sorted(files)[: -self._keep]:
            files[old].unlink(missing_ok=True)

    # --- when a job begins --------------------------------------------------------------------------------------

    def offer(self, rank: int) -> Offer:
        """What this rank has whole; reads all of it."""
        home = self._home(rank)
        # Asked before any training, and not by a newcomer: what breaks later must not end it.
        with _demanding(home):
            _make(home)
            with tempfile.TemporaryFile(dir=home):
                pass
        whole: dict[int, int] = {}
        for step, path in chain(sorted(self._files(rank).items()), self._find_dumps(rank)):
            try:
                whole[step] = checkpoint_file.check(path, step=step).num_ranks
            except (Damaged, OSError) as error:
                _say(f"rank {rank}: {path} is not used: {error}")
            else:
                self._whole[step] = path
        return whole

    def _find_dumps(self, rank: int) -> Iterator[tuple[int, Path]]:
        """What a first rank has saved for all on this disk: there may be another first one now, on another disk."""
        for step, path in sorted(self._files(0).items()) if rank else ():
            # What it has saved as one of many, and what is damaged, is its own affair.
            with contextlib.suppress(Damaged, OSError):
                if checkpoint_file.peek(path).num_ranks == 1:
                    yield step, path

    def resume(self, offers: Sequence[Offer], *, rank: int, first: int) -> int | None:
        """The step to go on from, which is restored here if this rank has it; None to begin at `first`."""
        step, files = newest_common(offers), self._files(rank)
        with _demanding(self._home(rank)):
            _set_aside([files[old] for old in files if old not in offers[rank] or old > (step or 0)])
        self._newest = 0
        if step is not None and rank in holders(offers, step):
            self._restore(self._whole[step], step)
            self._newest = step
        if rank == 0:
            self.verdict = _verdict(offers, step, first=first, directory=self._directory)
            _say(self.verdict)
        return step

    def unusable_on(self, rank: int) -> SpecError:
        valid = f"it must be a directory that can be written to, and it is not on rank {rank}"
        return SpecError("checkpoint(directory)", str(self._directory), valid)

    def _restore(self, path: Path, step: int) -> None:
        state = checkpoint_file.read(path)
        try:
            self._protected.load(state)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            fit = f"step {step} in it does not fit what the script protects ({error}); choose another directory"
            raise SpecError("checkpoint(directory)", str(self._directory), fit) from error

    def _home(self, rank: int) -> Path:
        return self._directory / f"rank_{rank}"

    def _files(self, rank: int) -> dict[int, Path]:
        found = ((NAME.fullmatch(path.name), path) for path in self._home(rank).glob("step_*"))
        return {int(match[1]): path for match, path in found if match}


def _verdict(offers: Sequence[Offer], step: int | None, *, first: int, directory: Path) -> str:
    newest = max((step for offer in offers for step in offer), default=None)
    if newest is None:
        return f"no whole checkpoint in {directory}: starting at step {first}"
    if step == newest:
        return f"resumed at step {step} from {directory}"
    lacking = missing(offers, newest)
    others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    reason = f"step {newest} is not whole on rank {lacking[0]}{others}; what is newer is kept in rank_*/{ASIDE}"
    if step is None:
        return f"no checkpoint in {directory} is whole on every rank: starting at step {first} ({reason})"
    return f"resumed at step {step} from {directory} ({reason})"


def _expect_number(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(name, value, f"it must be a whole number, {least} or more")


def _make(directory: Path) -> None:
    """Make a directory that survives a power failure, with those above it."""
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir(exist_ok=True)
        checkpoint_file.sync(directory.parent)


@contextlib.contextmanager
def _demanding(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        valid = f"it must be a directory that can be written to: {error}"
        raise SpecError("checkpoint(directory)", str(directory), valid) from error


def _set_aside(paths: list[Path]) -> None:
    for path in paths:
        aside = path.parent / ASIDE
        _make(aside)
        path.rename(_unused(aside / path.name))
        checkpoint_file.sync(aside)
        checkpoint_file.sync(path.parent)


def _unused(path: Path) -> Path:
    """This path, or one with a number after it: nothing that was put aside is overwritten."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(unused for unused in chain([path], numbered) if not unused.exists())


def _say(text: str) -> None:
    sys.stderr.write(f"holdfast: {text}\n")
    sys.stderr.flush()
