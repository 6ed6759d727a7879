"""`holdfast run`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast.agent.console import plain_error
from holdfast.agent.guard import run_guarded
from holdfast.agent.lifeline import Lifeline
from holdfast.errors import JobError
from holdfast.spec.flags import parse_run
from holdfast.spec.job import NodeSpec
from holdfast.spec.load import load_run


def run(argv: Sequence[str]) -> int:
    spec, notes = load_run(parse_run(argv))
    run_dir = _make_run_dir(spec)
    if spec.logs.kept and spec.logs.log_dir is None:
        notes.append(f"no --log-dir is given: logs are in {run_dir}")
    for note in notes:
        plain_error(note)
    signals = [signal.Signals[name] for name in spec.signals]

    def agent(guard: int, lifeline: Lifeline) -> int:
        from holdfast.agent.main import run_agent

        return run_agent(spec, run_dir=run_dir, guard=guard, lifeline=lifeline)

    try:
        return run_guarded(agent, signals=signals, marker=spec.marker)
    finally:
        if not spec.logs.kept:
            shutil.rmtree(run_dir, ignore_errors=True)


def _make_run_dir(spec: NodeSpec) -> Path:
    """Where the journal, the logs and the error files of this run lie; removed in the end unless asked for."""
    flag, base = ("--log-dir", spec.logs.log_dir) if spec.logs.log_dir else ("--run-dir", spec.logs.run_dir)
    try:
        if base is None:
            return Path(tempfile.mkdtemp(prefix="holdfast_"))
        Path(base).mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{spec.rules.job_id}_".replace("/", "_"), dir=base))
    except OSError as error:
        raise JobError(f"{flag}: {error.filename} cannot be made: {error.strerror}") from error
