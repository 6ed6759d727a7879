"""Every test here leaves the machine as it was: processes, mounts, control groups."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import MARK, describe, marked, until
from victims import Victim, connect

from holdfast.chaos.mounts import mounts
from holdfast.platforms.local.network import obstacle

GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """What every process that the test starts carries; nothing may be left of them, nor of what they made."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before = _groups()
    yield mark
    until(lambda: not marked(mark), within_s=30, what="no process left", tell=lambda: describe(marked(mark)))
    until(lambda: _groups() <= before, within_s=30, what="no control group left", tell=lambda: str(_groups()))
    assert not [mount for mount in mounts() if mount.place.is_relative_to(tmp_path)]


def _groups() -> set[Path]:
    """Those of tests that run beside this one are among them."""
    return set(GROUPS.glob("*/holdfast-*"))


@pytest.fixture
def start_victim(mark: str, tmp_path: Path) -> Iterator[Callable[..., Victim]]:
    victims: list[Victim] = []

    def begin(*prefix: str) -> Victim:
        directory = tmp_path / f"victim{len(victims)}" / "files"
        directory.mkdir(parents=True)
        victims.append(Victim(directory, prefix=prefix))
        return victims[-1]

    yield begin
    for victim in victims:
        victim.end()


@pytest.fixture
def victim(start_victim: Callable[..., Victim]) -> Victim:
    return start_victim()


@pytest.fixture
def networked(start_victim: Callable[..., Victim]) -> Victim:
    """One at the end of a cable."""
    if reason := obstacle():
        pytest.skip(reason)
    one, other = start_victim("unshare", "--net"), start_victim("unshare", "--net")
    connect(one, other)
    return one


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("it needs root")
