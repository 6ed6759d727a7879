"""`torchrun --rdzv-backend holdfast`: their command, our recovery."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import PYTHON, TORCHRUN
from managers import REPAIRABLE, STARTED_S, Begin

from holdfast.torchrun import become_holdfast

COMMANDS = {"torchrun": (TORCHRUN,), "module": (PYTHON, "-m", "torch.distributed.run")}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_worker_is_repaired_in_place(begin: Begin, tmp_path: Path, command: str):
    flags = ("--nproc-per-node", 2, "--rdzv-backend", "holdfast")
    job = begin(*COMMANDS[command], *flags, REPAIRABLE, tmp_path, "0:0:pause", "30:1:kill")
    assert job.wait(within_s=STARTED_S) == 0, job.story()
    assert "killed by SIGKILL" in job.err
    assert "incident 1 repaired" in job.err
    found = re.findall(r"rank (\d) pid \d+ weights (\w+)", job.out)
    assert sorted(rank for rank, _ in found) == ["0", "1"]
    assert len({weights for _, weights in found}) == 1


def test_only_a_torchrun_can_become_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])
    with pytest.raises(ValueError, match="holdfast run"):
        become_holdfast(None)
