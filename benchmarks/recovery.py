"""Measure what a fault costs: with the SDK, with a standby too, and under torchrun with checkpoints.

One job of 4 ranks at a time is disturbed once and trains on to its end; the systems take turns.
Progress goes to stderr.
"""

import argparse
import json
import signal
import subprocess
import sys
from dataclasses import replace

from disturbances import (
    DAMAGE,
    EVENTS,
    KILLS,
    LARGE,
    SMALL,
    STOPS,
    Fault,
    Sample,
    System,
    measure_clean,
    measure_disturbed,
)
from experiments import Pair, measure_steady_state
from harness import SDK_WORKLOAD, JobFailed, Launcher
from processes import adopt_orphans, end_all_descendants, uninterrupted
from recovery_report import Results, document, table
from restart import HOLDFAST, TORCHRUN, interrupt, say

EXPERIMENTS = "kill", "stop", "damage", "steady"
FULL = {"rounds": 7, "sessions": 6, "pairs": 4, "block": 100}
FULL_LARGE = {"rounds": 3, "sessions": 2, "pairs": 4, "block": 8}
QUICK = {"rounds": 1, "sessions": 1, "pairs": 2, "block": 24}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=EXPERIMENTS, action="append", help="may be repeated")
    parser.add_argument(
        "--large", action="store_true", help="49 million parameters with Adam, not 0.95 million with SGD"
    )
    parser.add_argument(
        "--slow", action="store_true", help="SIGSTOP under torchrun too; its timeout, set to 10 s, is slow"
    )
    parser.add_argument("--quick", action="store_true", help="a check of the harness, no result")
    parser.add_argument("--json", action="store_true", help="raw samples to stdout, table to stderr")
    parser.add_argument("--rounds", type=int, help="jobs per system and fault (7; 3 with --large)")
    parser.add_argument("--sessions", type=int, help="fresh pairs of jobs that take turns (6; 2 with --large)")
    parser.add_argument("--pairs", type=int, help="measurements per session (4)")
    parser.add_argument("--block", type=int, help="steps of each job per measurement (100; 8 with --large)")
    parser.add_argument("--holdfast", default=HOLDFAST, metavar="COMMAND")
    parser.add_argument("--torchrun", default=TORCHRUN, metavar="COMMAND")
    args = parser.parse_args()
    for name, value in (QUICK if args.quick else FULL_LARGE if args.large else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def systems_of(args: argparse.Namespace) -> list[System]:
    arguments = ("--large",) if args.large else ()
    holdfast = Launcher.parse(args.holdfast).with_(flags=[f"--events={{folder}}/{EVENTS}"], arguments=arguments)
    holdfast = replace(holdfast, script=SDK_WORKLOAD)
    return [
        System("holdfast SDK", holdfast),
        System("holdfast SDK, --standby 1", holdfast.with_(flags=["--standby=1"]), has_standby=True),
        System("torchrun", Launcher.parse(args.torchrun).with_(arguments=arguments)),
    ]


def faults_of(args: argparse.Namespace, chosen: tuple[str, ...]) -> list[Fault]:
    groups = {"kill": KILLS, "stop": STOPS, "damage": [DAMAGE]}
    return [fault for name, faults in groups.items() if name in chosen for fault in faults]


def applies(fault: Fault, system: System, *, slow: bool) -> bool:
    """Whether there is anything to measure: torchrun never retries, and a standby makes no difference to a retry."""
    if fault is DAMAGE:
        return system.has_sdk and not system.has_standby
    return system.has_sdk or fault in KILLS or slow


def measure_disturbances(results: Results, args: argparse.Namespace, faults: list[Fault]) -> None:
    """Round by round, so that the drift of the machine meets every system alike."""
    systems, plan = results.systems, results.plan
    clean = {}
    for system in (systems[0], systems[-1]):
        clean[system.has_sdk] = measure_clean(system, plan, report=say)
    results.clean = list(clean.values())
    for turn in range(args.rounds):
        for fault in faults:
            for system in systems if turn % 2 == 0 else systems[::-1]:
                if applies(fault, system, slow=args.slow):
                    sample = measure_disturbed(system, fault, plan, clean=clean[system.has_sdk])
                    results.samples.append(sample)
                    say(f"{turn + 1}/{args.rounds}  {fault.name}, {system.name}: {outcome_of(sample)}")


def outcome_of(sample: Sample) -> str:
    if sample.failure is not None or sample.new_step_s is None:
        return sample.failure or "not recovered"
    weights = "same weights" if sample.same_weights else "other weights"
    return f"{sample.new_step_s:.3f} s, {sample.steps_run_again} steps run again, {weights}"


def measure(args: argparse.Namespace) -> Results:
    systems = systems_of(args)
    pair = Pair(baseline=systems[-1].launcher, candidate=systems[0].launcher)
    settings = {name: getattr(args, name) for name in ("quick", "large", "slow", *FULL)}
    results = Results(systems, pair, LARGE if args.large else SMALL, settings)
    chosen = tuple(args.only or EXPERIMENTS)
    # The first job would otherwise pay for reading torch from the disk.
    subprocess.run([sys.executable, "-c", "import torch._dynamo"], check=True)
    if faults := faults_of(args, chosen):
        measure_disturbances(results, args, faults)
    if "steady" in chosen:
        results.steady = measure_steady_state(
            pair, sessions=args.sessions, pairs=args.pairs, block=args.block, report=say
        )
    return results


def main() -> int:
    args = parse_args()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupt)
    adopt_orphans()
    try:
        results = measure(args)
    except JobFailed as failure:
        say(f"stopped: a job {failure}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    finally:
        with uninterrupted():
            end_all_descendants()
    if args.json:
        say(table(results))
        print(json.dumps(document(results), indent=1))
    else:
        print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
