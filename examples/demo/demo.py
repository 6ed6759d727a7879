"""Train twice on this machine: once undisturbed, once with a worker killed, one stopped and one damaged.

Shows what was seen of each fault, what was decided, how soon the step was done after all and who was replaced; then
whether both runs end with the very same weights. Every figure is measured in this run; the exit code is 0 only if all
held.
"""

import argparse
import json
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from job import adopt_orphans, end_descendants, uninterrupted
from training import WORKERS, DemoFailed, Fault, Result, Training
from view import Progress, View, open_view

MIN_STEPS = 60
"""Holdfast has to see some steps before it can tell a hang by their pace."""


def plan(steps: int) -> list[Fault]:
    return [
        Fault("kill", rank=2, step=steps // 4, signal=signal.SIGKILL),
        Fault("hang", rank=1, step=steps // 2, signal=signal.SIGSTOP),
        Fault("damage", rank=3, step=steps * 4 // 5, signal=None),
    ]


def show(view: View, progress: tuple[Progress, Progress], args: argparse.Namespace) -> dict[str, Any]:
    """Run both trainings; returns what was measured, raises `DemoFailed` if something did not hold."""
    launcher = shlex.split(args.launcher)
    if shutil.which(launcher[0]) is None:
        raise DemoFailed(f"{launcher[0]} is not there; ./scripts/setup installs it")
    faults = plan(args.steps)
    view.say(f"{WORKERS} workers, {args.steps} steps: first undisturbed, then with three faults on the way.")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        calm = Training(progress[0], view, folder=Path(folder, "calm"), faults=[])
        reference = calm.run(launcher, timeout_s=args.timeout)
        struck = Training(progress[1], view, folder=Path(folder, "struck"), faults=faults)
        result = struck.run(launcher, timeout_s=args.timeout)
    judge(reference, result, faults)
    return {
        "weights": reference.weights[0],
        "undisturbed_s": reference.seconds,
        "with_faults_s": result.seconds,
        "faults": [report(fault) for fault in faults],
    }


def judge(reference: Result, result: Result, faults: list[Fault]) -> None:
    if others := [*reference.story.repairs, *result.story.repairs[len(faults) :]]:
        raise DemoFailed(f"a fault that the demo did not cause: {'; '.join(others[0].seen)}")
    if missed := [fault.name for fault in faults if fault.repair is None]:
        raise DemoFailed(f"the run ended before it was struck and repaired: {', '.join(missed)}")
    if result.pids != result.story.pids:
        raise DemoFailed(f"other processes ended than the events name: {result.pids}, {result.story.pids}")
    if not len(reference.weights) == len(result.weights) == WORKERS:
        raise DemoFailed(f"not every rank said its weights: {reference.weights} undisturbed, {result.weights} repaired")
    if len({*reference.weights.values(), *result.weights.values()}) != 1:
        raise DemoFailed(f"final weights differ: {reference.weights} undisturbed, {result.weights} after the faults")


def praise(outcome: dict[str, Any]) -> str:
    return (
        "PASS  every fault was repaired in place, and all ranks end with the weights of the undisturbed run,\n"
        f"      bit for bit ({outcome['weights']}); {outcome['undisturbed_s']:.1f} s undisturbed, "
        f"{outcome['with_faults_s']:.1f} s with three faults"
    )


def report(fault: Fault) -> dict[str, Any]:
    repair = fault.repair
    assert repair is not None, "judged to be repaired"
    return {
        "name": fault.name,
        "rank": fault.rank,
        "done": fault.deed,
        "seen": repair.seen,
        "decided": repair.decided,
        "repaired_ms": repair.ms,
        "after_signal_s": fault.after_signal_s(),
        "replaced": {rank: {"before": before, "after": after} for rank, (before, after) in repair.replaced.items()},
        "unchanged": repair.kept,
    }


def interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each training")
    parser.add_argument("--json", action="store_true", help="the outcome as JSON; the rest goes to standard error")
    beside = Path(sys.executable).with_name("holdfast")
    parser.add_argument("--launcher", default=f"{shlex.quote(str(beside))} run", help="the command")
    args = parser.parse_args()
    if args.steps < MIN_STEPS:
        parser.error(f"--steps {args.steps}: three repairs need at least {MIN_STEPS} steps")

    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupt)
    adopt_orphans()
    progress = Progress("undisturbed", args.steps), Progress("three faults", args.steps)
    view = open_view(progress, sys.stderr if args.json else sys.stdout)
    outcome: dict[str, Any] = {}
    try:
        outcome = show(view, progress, args)
        verdict, code = praise(outcome), 0
    except DemoFailed as failure:
        verdict, code = f"FAIL  {failure}", 1
    except KeyboardInterrupt:
        verdict, code = "stopped; nothing is left running", 130
    finally:
        with uninterrupted():
            end_descendants()
            view.close()
    print(json.dumps({"passed": code == 0, "verdict": verdict, **outcome}) if args.json else f"\n{verdict}")
    return code


if __name__ == "__main__":
    sys.exit(main())
