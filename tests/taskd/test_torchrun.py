"""`torchrun --rdzv-backend holdfast`: their command, our recovery."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import PYTHON, TORCHRUN, clean_env
from managers import REPAIRABLE, STARTED_S, Begin

from holdfast.handover import become_holdfast

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


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    """torch's launcher with TaskD's patch, in which only the import is another one."""
    run = find_spec("torch.distributed.run")
    assert run is not None
    assert run.origin is not None
    command = ["sed", "/import os/i import holdfast.torchrun", run.origin]
    (tmp_path / "torchrun").write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    return tmp_path / "torchrun"


def test_a_line_in_torchs_launcher_does_the_same(begin: Begin, patched: Path, tmp_path: Path):
    (tmp_path / "tell.py").write_text("import os; print('generation', os.environ['HOLDFAST_GENERATION'])")
    job = begin(PYTHON, patched, "--nproc-per-node", 1, "--start-method", "spawn", tmp_path / "tell.py")
    assert job.wait(within_s=STARTED_S) == 0, job.story()
    assert "generation 1\n" in job.out


@pytest.mark.parametrize(
    ("name", "module", "asked", "found"),
    [
        ("torchrun", "torchrun", None, "holdfast"),
        ("torchrun", "torchrun", "c10d", "c10d"),
        ("train.py", "torchrun", None, None),
        ("torchrun", "handover", None, None),
    ],
    ids=["torchrun", "another rendezvous", "another program", "torch's plug-ins"],
)
def test_whom_that_line_concerns(tmp_path: Path, name: str, module: str, asked: str | None, found: str | None):
    (tmp_path / name).write_text(f"import os, holdfast.{module}; print(os.environ.get('PET_RDZV_BACKEND'))")
    env = clean_env({} if asked is None else {"PET_RDZV_BACKEND": asked})
    command = [PYTHON, str(tmp_path / name)]
    assert subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout == f"{found}\n"


def test_only_a_torchrun_can_become_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])
    with pytest.raises(ValueError, match="holdfast run"):
        become_holdfast(None)
