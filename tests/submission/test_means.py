"""What this machine refuses is done without, unless the job insists on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import JobError
from holdfast.platforms.local.cgroups import Hierarchy
from holdfast.submission.means import Means, Plan


@pytest.fixture
def busy(tmp_path: Path) -> Hierarchy:
    """Groups can be made, but nothing can be limited in them."""
    (tmp_path / "cgroup.subtree_control").mkdir()
    return Hierarchy(2, {"all": tmp_path})


@pytest.mark.parametrize("is_limited", [False, True])
def test_limits_that_cannot_be_set_are_left_to_the_watchdog(busy: Hierarchy, is_limited: bool):
    means = Means(Plan(False, busy, (), is_limited=is_limited), guard=os.getpid())
    assert means.cgroups is None
    assert [note.split(":")[0] for note in means.notes] == ["no control group holds the nodes"] * is_limited
    means.close()
    assert not list(busy.bases["all"].glob("holdfast.*"))


def test_limits_that_were_asked_for_by_name_are_insisted_on(busy: Hierarchy):
    with pytest.raises(JobError, match="no control group can be made"):
        Means(Plan(False, busy, (), insists=("limits",)), guard=os.getpid())
    assert not list(busy.bases["all"].glob("holdfast.*"))


def test_a_network_that_cannot_be_made_is_the_machines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # without ip
    means = Means(Plan(True, None, ()), guard=os.getpid())
    assert means.network is None
    assert [note.split(":")[0] for note in means.notes] == ["nodes share this machine's network"]
    means.close()
    with pytest.raises(JobError, match="network"):
        Means(Plan(True, None, (), insists=("network",)), guard=os.getpid())
