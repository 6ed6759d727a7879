"""Train twice on this machine: once undisturbed, once with a worker killed half-way.

Shows that the second run carries on by itself, how long that took, and whether it ends with the
very same weights. Every figure is measured in this run; the exit code is 0 only if all held.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any

from job import Job, Line, adopt_orphans, end_descendants, uninterrupted
from view import Progress, View, open_view

SCRIPT = Path(__file__).parents[1] / "mnist" / "train.py"
WORKERS, VICTIM, CHECKPOINT_EVERY = 4, 2, 20
EVENTS_S = 2.0

STARTED = re.compile(r"(?:started|resumed) at step (\d+)")
STEP = re.compile(r"step (\d+)/\d+  loss ([\d.]+)")
RESULT = re.compile(r"accuracy ([\d.]+%)  weights ([0-9a-f]+)")


class DemoFailed(Exception):
    """The promise did not hold; the text says which part."""


@dataclass
class Kill:
    """The fault and what came of it; steps are those of rank 0, times seconds after the kill."""

    at: float
    step: int
    """The last step done before the restart."""
    resumed_step: int | None = None
    first_step_s: float | None = None
    new_step_s: float | None = None


@dataclass
class Outcome:
    accuracy: str
    weights: str
    seconds: float
    kill: Kill | None


def worker_starts(events: Path) -> list[dict[int, int]]:
    """Rank -> pid for every start of the workers so far, the latest last."""
    whole_lines = events.read_text().rpartition("\n")[0] if events.exists() else ""
    records: list[Mapping[str, Any]] = [json.loads(line) for line in whole_lines.splitlines()]
    return [
        {int(rank): int(pid) for rank, pid in record["pids"].items()}
        for record in records
        if record.get("kind") == "workers_started"
    ]


class Training:
    """One run of the script: reads its lines, kills a worker on the way if told to."""

    def __init__(self, progress: Progress, view: View, folder: Path) -> None:
        self.progress, self._view = progress, view
        self._folder, self._events = folder, folder / "events.jsonl"
        self._kill: Kill | None = None

    def run(self, launcher: list[str], *, kill_at: int | None, timeout_s: float) -> Outcome:
        self._folder.mkdir()
        flags = ["--standalone", "--nproc-per-node", str(WORKERS), "--events", str(self._events)]
        script = [str(SCRIPT), "--steps", str(self.progress.total), "--same-bits"]
        script += ["--checkpoint-every", str(CHECKPOINT_EVERY), "--log-every", "1"]
        # CPU everywhere and one thread per worker: the same demo on every machine. The log level
        # hides DDP's remark that --same-bits makes each step look for unused parameters.
        fixed = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self.progress.state = "starting"
        began_at = monotonic()
        result = None
        with Job([*launcher, *flags, *script], folder=self._folder, env=os.environ | fixed) as job:
            try:
                for line in job.lines(timeout_s=timeout_s):
                    if line is not None:
                        result = RESULT.search(line.text) or result
                        self._read(line)
                        if kill_at is not None and not self._kill and self.progress.step >= kill_at:
                            self._kill = self._kill_worker()
                    self._show()
                code = job.exit_code()
            except TimeoutError as error:
                raise DemoFailed(f"{error}; its last lines:\n{tail(job)}") from error
        if code != 0 or result is None:
            raise DemoFailed(f"the job ended with exit code {code}; its last lines:\n{tail(job)}")
        self.progress.state = f"done in {monotonic() - began_at:.1f} s"
        self._view.update(at_once=True)
        return Outcome(result[1], result[2], monotonic() - began_at, self._kill)

    def _read(self, line: Line) -> None:
        if started := STARTED.search(line.text):
            self.progress.step = int(started[1])
            self._note_start(line, int(started[1]))
        elif step := STEP.search(line.text):
            self.progress.step, self.progress.loss = int(step[1]), float(step[2])
            self._note_step(line, int(step[1]))

    def _note_start(self, line: Line, step: int) -> None:
        starts = worker_starts(self._events)
        self.progress.restarts = max(0, len(starts) - 1)
        self.progress.world = len(starts[-1]) if starts else 0
        self.progress.state = "training"
        if self._kill and self._kill.resumed_step is None:
            self._kill.resumed_step = step
            after_s = line.at - self._kill.at
            self._view.say(f"  {after_s:6.2f} s  workers are back, at step {step}'s checkpoint")

    def _note_step(self, line: Line, step: int) -> None:
        kill = self._kill
        if kill is None:
            return
        if kill.resumed_step is None:
            # The step that was in flight: the others need the dead worker only until its gradients are summed.
            kill.step = max(kill.step, step)
            return
        if kill.first_step_s is None:
            kill.first_step_s = line.at - kill.at
            self._view.say(f"  {kill.first_step_s:6.2f} s  first step done by the new workers")
        if kill.new_step_s is None and step > kill.step:
            kill.new_step_s = line.at - kill.at
            self._view.say(f"  {kill.new_step_s:6.2f} s  past the step of the kill")

    def _kill_worker(self) -> Kill:
        deadline = monotonic() + EVENTS_S
        while not (starts := worker_starts(self._events)):
            if monotonic() > deadline:
                raise DemoFailed(f"the events file named no workers for {EVENTS_S:.0f} s")
            sleep(0.02)
        pid = starts[-1][VICTIM]
        kill = Kill(at=monotonic(), step=self.progress.step)
        os.kill(pid, signal.SIGKILL)
        self._view.say(f"    0.00 s  SIGKILL to rank {VICTIM} (pid {pid}) at step {kill.step}")
        return kill

    def _show(self) -> None:
        if self._kill and self._kill.resumed_step is None:
            self.progress.state = f"recovering {monotonic() - self._kill.at:.1f} s"
        self._view.update()


def tail(job: Job) -> str:
    return "\n".join(f"  | {line}" for line in job.output[-15:] or ["(none)"])


def show(view: View, clean: Progress, killed: Progress, args: argparse.Namespace) -> str:
    """Run both trainings; returns the verdict, raises `DemoFailed` if something did not hold."""
    launcher = shlex.split(args.launcher)
    if shutil.which(launcher[0]) is None:
        raise DemoFailed(f"{launcher[0]} is not there; ./scripts/setup installs it")
    half = args.steps // 2
    # Half-way between two checkpoints, so that some steps are really lost.
    kill_at = half - half % CHECKPOINT_EVERY + CHECKPOINT_EVERY // 2
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        view.say(f"{WORKERS} workers, {args.steps} steps, a checkpoint every {CHECKPOINT_EVERY}.")
        view.say("First without a fault, then again with a worker killed on the way:")
        reference = Training(clean, view, Path(folder, "clean")).run(launcher, kill_at=None, timeout_s=args.timeout)
        outcome = Training(killed, view, Path(folder, "killed")).run(launcher, kill_at=kill_at, timeout_s=args.timeout)
    return judge(reference, outcome)


def judge(reference: Outcome, outcome: Outcome) -> str:
    kill = outcome.kill
    if kill is None or kill.resumed_step is None or kill.new_step_s is None:
        raise DemoFailed("the run ended without a restart after the kill")
    if outcome.weights != reference.weights:
        raise DemoFailed(
            f"final weights differ: {reference.weights} undisturbed, {outcome.weights} after the "
            f"kill (accuracy {reference.accuracy} and {outcome.accuracy})"
        )
    return (
        f"worker rank {VICTIM} killed at step {kill.step}; training again from step "
        f"{kill.resumed_step}'s checkpoint {kill.first_step_s:.2f} s later, past step {kill.step} "
        f"after {kill.new_step_s:.2f} s; final accuracy {outcome.accuracy}\n"
        f"      final weights equal the undisturbed run's bit for bit ({outcome.weights}); both "
        "runs used --same-bits,\n      without which DDP sums in another order after a restart, "
        "under any launcher"
    )


def interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each training")
    beside = Path(sys.executable).with_name("holdfast")
    parser.add_argument("--launcher", default=f"{shlex.quote(str(beside))} run", help="the command")
    args = parser.parse_args()

    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupt)
    adopt_orphans()
    clean = Progress("undisturbed", args.steps)
    killed = Progress("one killed", args.steps)
    view = open_view([clean, killed])
    try:
        verdict, code = f"PASS  {show(view, clean, killed, args)}", 0
    except DemoFailed as failure:
        verdict, code = f"FAIL  {failure}", 1
    except KeyboardInterrupt:
        verdict, code = "stopped; nothing is left running", 130
    finally:
        with uninterrupted():
            end_descendants()
            view.close()
    print(verdict)
    return code


if __name__ == "__main__":
    sys.exit(main())
