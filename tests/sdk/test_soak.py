"""Faults of every kind, one after the other, on machines of their own: the short form of `soak.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import MakeMachines
from soak import FAULTS, HOST_FAULTS, NUM_MACHINES, Plan, complaints, play

EVERY_S = 4.0
ALL = FAULTS | HOST_FAULTS


@pytest.mark.timeout(400)
def test_a_job_outlasts_faults_of_every_kind(machines: MakeMachines, tmp_path: Path) -> None:
    plan = Plan(len(ALL), EVERY_S, seed=3, faults=ALL)
    soak, ends = play(machines(NUM_MACHINES), tmp_path / "site", plan)
    assert {struck.name for struck in soak.struck} == set(ALL)
    assert complaints(soak, ends) == []
