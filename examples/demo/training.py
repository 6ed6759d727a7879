"""One training run: follows its lines and its events, and strikes its workers on the way."""

import contextlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals

from job import Job
from story import Repair, Story, read_story
from view import Progress, View

SCRIPT = Path(__file__).parents[1] / "repair" / "train.py"
WORKERS = 4
HANG_S = 2

STEP = re.compile(r"step (\d+)(?:  loss (\S+))?")
DAMAGE = re.compile(r"rank \d+ overwrites \S+ with NaN at step \d+")
RESULT = re.compile(r"rank (\d+), process (\d+): weights ([0-9a-f]+)")


class DemoFailed(Exception):
    """The promise did not hold; the text says which part."""


@dataclass
class Fault:
    name: str
    rank: int
    step: int
    """It is struck when so many steps are done."""
    signal: Signals | None
    """Sent to the rank's process; None for damage, which the script does to itself."""
    deed: str = ""
    """What was done to whom, once it is struck."""
    struck_at: float = 0.0
    """Seconds of the wall clock, which the events have too."""
    repair: Repair | None = None
    """What came of it, once that is known."""

    def expected_to_be_replaced(self) -> set[int]:
        return {self.rank} if self.signal else set()

    def after_signal_s(self) -> float | None:
        """From the signal to the repaired step, the time until it was noticed included."""
        return self.repair.closed_at - self.struck_at if self.repair and self.signal else None


@dataclass
class Result:
    seconds: float
    story: Story
    pids: dict[int, int] = field(default_factory=dict)
    """Rank to process id, and to fingerprint, as each rank has printed it at its end."""
    weights: dict[int, str] = field(default_factory=dict)


class Training:
    def __init__(self, progress: Progress, view: View, *, folder: Path, faults: list[Fault]) -> None:
        self._progress, self._view, self._faults = progress, view, faults
        self._folder, self._events = folder, folder / "events.jsonl"
        self._struck: list[Fault] = []
        self._story = Story()

    def run(self, launcher: list[str], *, timeout_s: float) -> Result:
        self._folder.mkdir()
        self._progress.state = "starting"
        began_at = time.monotonic()
        # CPU everywhere and one thread per worker: the same demo on every machine.
        env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        with Job([*launcher, *self._arguments()], folder=self._folder, env=env) as job:
            try:
                for line in job.lines(timeout_s=timeout_s):
                    self._follow(line or "")
                code = job.exit_code()
            except TimeoutError as error:
                raise DemoFailed(f"{error}; its last lines:\n{tail(job)}") from error
        self._follow("")
        if code != 0:
            raise DemoFailed(f"the job ended with exit code {code}; its last lines:\n{tail(job)}")
        result = Result(time.monotonic() - began_at, self._story)
        for line in job.output:
            if end := RESULT.fullmatch(line):
                result.pids[int(end[1])], result.weights[int(end[1])] = int(end[2]), end[3]
        self._progress.state = f"done in {result.seconds:.1f} s"
        return result

    def _arguments(self) -> list[str]:
        flags = ["--standalone", "--nproc-per-node", str(WORKERS), "--events", str(self._events)]
        flags += ["--hang-timeout", f"{HANG_S}:30"]
        script = [str(SCRIPT), "--steps", str(self._progress.total), "--log-every", "1"]
        for fault in self._faults:
            if fault.signal is None:
                script += ["--damage-at", f"{fault.step}:{fault.rank}"]
        return [*flags, *script]

    def _follow(self, line: str) -> None:
        if step := STEP.fullmatch(line):
            self._progress.note_step(int(step[1]), loss=float(step[2]) if step[2] else None)
        self._view.update()
        self._story = read_story(self._events)
        if damage := DAMAGE.fullmatch(line):
            self._note_struck(next(fault for fault in self._faults if fault.signal is None), damage[0])
        elif len(self._story.repairs) == len(self._struck) and not self._story.open_repair:
            self._strike()
        if self._story.restart:
            raise DemoFailed(f"nothing was repaired in place, all workers were restarted: {self._story.restart}")
        for fault, repair in zip(self._struck, self._story.repairs, strict=False):
            if fault.repair is None and repair.verdict:
                fault.repair = repair
                self._conclude(fault, repair)

    def _strike(self) -> None:
        for fault in self._faults:
            pid = self._story.pids.get(fault.rank)
            if fault.signal and pid and not fault.deed and self._progress.step >= fault.step:
                at = time.time()
                # The job may have ended already; then this fault is missed, and the demo says so.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, fault.signal)
                    deed = f"{fault.signal.name} to rank {fault.rank} (process {pid}) after {self._progress.step} steps"
                    self._note_struck(fault, deed, at=at)
                return

    def _note_struck(self, fault: Fault, deed: str, *, at: float = 0.0) -> None:
        fault.deed, fault.struck_at = deed, at
        self._struck.append(fault)
        self._progress.state = f"{fault.name}: repairing"
        self._view.say(f"\n  {fault.name:<10} {deed}")

    def _conclude(self, fault: Fault, repair: Repair) -> None:
        if repair.verdict != "repaired" or not repair.blames(fault.rank):
            raise DemoFailed(f"the {fault.name} was not repaired; {repair.verdict}: {'; '.join(repair.seen)}")
        self._progress.state = "training"
        for label, text in describe(fault, repair):
            self._view.say(f"  {label:<10} {text}")
        if repair.replaced.keys() != fault.expected_to_be_replaced():
            expected, replaced = sorted(fault.expected_to_be_replaced()), sorted(repair.replaced)
            why = "; ".join(repair.seen)
            raise DemoFailed(f"the {fault.name} should replace ranks {expected}, it replaced {replaced}: {why}")


def describe(fault: Fault, repair: Repair) -> list[tuple[str, str]]:
    """What a person should know of a repair: label and text of each line."""
    ms = f"{repair.ms:.0f} ms after it was seen"
    if fault.signal and (after_s := fault.after_signal_s()) is not None:
        included = ", its deadline included" if fault.signal is Signals.SIGSTOP else ""
        ms += f", {after_s * 1000:.0f} ms after {fault.signal.name}{included}"
    replaced = [f"rank {rank} is now {after}, was {before}" for rank, (before, after) in repair.replaced.items()]
    kept = ", ".join(f"rank {rank} {pid}" for rank, pid in sorted(repair.kept.items()))
    return [
        *(("seen", text) for text in repair.seen),
        *(("decided", text) for text in repair.decided),
        ("repaired", f"the step is done on all ranks {ms}"),
        ("processes", f"{', '.join(replaced) or 'none replaced'}; unchanged: {kept}"),
    ]


def tail(job: Job) -> str:
    return "\n".join(f"  | {line}" for line in job.output[-15:] or ["(none)"])
