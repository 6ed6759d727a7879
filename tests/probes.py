"""The ways in which the identity probe is run under torchrun and under each start method of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import HOLDFAST, PYTHON, TORCHRUN, start

IDENTITY = Path(__file__).parent / "compat" / "probes" / "identity.py"

LAUNCHERS = {
    "torchrun": [TORCHRUN],
    "warm": [HOLDFAST, "run"],
    "spawn": [HOLDFAST, "run", "--start-method", "spawn"],
    "handed over": [TORCHRUN, "--rdzv-backend", "holdfast"],
}


@dataclass(frozen=True)
class Mode:
    """One way to run the probe, the same under every launcher; `{dir}` is a directory with copies of it."""

    args: tuple[str, ...]
    num_workers: int = 2
    env: dict[str, str] = field(default_factory=dict)


MODES = {
    "script": Mode(("--nproc-per-node=2", "{dir}/identity.py", "a", "b c", "--flag", "rank${local_rank}", "")),
    "module": Mode(("-m", "lonely", "-x"), num_workers=1),
    "package": Mode(
        ("--nproc_per_node", "2", "--role", "trainer", "--virtual-local-rank", "--module", "crowd", "one"),
        env={"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "4,7"},
    ),
    "program": Mode(
        ("--nproc_per_node=2", "--no_python", "--rdzv_id", "77", PYTHON, "-u", "identity.py", "${local_rank}"),
    ),
    "run_path": Mode(
        ("{dir}/identity.py", "x"),
        env={"PET_NPROC_PER_NODE": "2", "PET_ROLE": "eval", "PET_RUN_PATH": "1", "PET_MAX_RESTARTS": "2"},
    ),
}
Records = list[dict[str, Any]]


def run_probe(launcher: list[str], mode: Mode, directory: Path, where: Path) -> Records:
    """One record for each rank."""
    args = [arg.replace("{dir}", str(directory)) for arg in mode.args]
    env = {**mode.env, "PROBE_DIR": str(where), "PROBE_TORCH": "1"}
    job = start([*launcher, *args], directory=where, env=env, cwd=directory)
    try:
        assert job.wait(within_s=150) == 0, job.story()
        job.expect_nothing_left()
    finally:
        job.destroy()
    return [json.loads((where / f"{rank}.json").read_text()) for rank in range(mode.num_workers)]
