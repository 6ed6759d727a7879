"""The undisturbed run that a disturbed one is compared with."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from holdfast.errors import JobError

SCRIPT = Path(__file__).parent / "train.py"
EPOCH_S = 1.0
START_S = 300.0
"""For an undisturbed run to end, with so much more for each epoch; then the experiment fails, with what it said."""
MANY_EPOCHS = 24
"""Enough for most experiments, so that one run serves them all; or twice as many, and so on."""


def undisturbed(num_ranks: int, num_epochs: int) -> dict[str, str]:
    """The weights after each epoch; they depend on the number of ranks, and on nothing else of the job."""
    return _run(num_ranks, math.ceil(num_epochs / MANY_EPOCHS) * MANY_EPOCHS)


@cache
def _run(num_ranks: int, num_epochs: int) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="holdfast_") as scratch:
        records = Path(scratch) / "records.jsonl"
        job = [sys.executable, "-P", "-m", "holdfast.cli.main", "run", "--nproc-per-node", str(num_ranks)]
        training = [str(SCRIPT), str(records), "--epochs", str(num_epochs)]
        limit_s = START_S + EPOCH_S * num_epochs
        try:
            done = subprocess.run([*job, *training], capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise JobError(f"an undisturbed run of {num_ranks} ranks has not ended within {limit_s:g} s") from None
        if done.returncode != 0:
            raise JobError(f"an undisturbed run of {num_ranks} ranks failed:\n{done.stderr[-2000:]}")
        rows = [json.loads(line) for line in records.read_text().splitlines()]
    return {str(row["epoch"]): row["weights"] for row in rows if row["what"] == "epoch"}
