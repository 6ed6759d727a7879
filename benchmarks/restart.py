"""Compare two launchers on one machine: cold start, restart after a SIGKILL, and running cost.

Both run the same unmodified DDP script with the same flags, in turns. Progress goes to stderr.
"""

import argparse
import subprocess
import sys

from experiments import Pair, measure_overhead, measure_restarts, measure_steady_state
from harness import Launcher
from program import conduct, say
from report import Results, document, table

# Without the variable torchrun restarts into the store of the dead workers, and most restarts fail.
TORCHRUN = "env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun"
HOLDFAST = "holdfast run"
EXPERIMENTS = "restart", "overhead", "steady"
FULL = {"rounds": 7, "sessions": 6, "pairs": 4, "block": 100, "window": 10.0}
QUICK = {"rounds": 1, "sessions": 1, "pairs": 4, "block": 25, "window": 2.0}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baseline", default=TORCHRUN, metavar="COMMAND")
    parser.add_argument("--candidate", default=HOLDFAST, metavar="COMMAND")
    parser.add_argument("--only", choices=EXPERIMENTS, action="append", help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="a check of the harness, no result")
    parser.add_argument("--json", action="store_true", help="raw samples to stdout, table to stderr")
    parser.add_argument("--rounds", type=int, help="jobs per launcher that are killed (7)")
    parser.add_argument("--sessions", type=int, help="fresh pairs of jobs that take turns (6)")
    parser.add_argument("--pairs", type=int, help="measurements per session (4)")
    parser.add_argument("--block", type=int, help="steps of each job per measurement (100)")
    parser.add_argument("--window", type=float, help="seconds per CPU measurement (10)")
    args = parser.parse_args()
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def measure(args: argparse.Namespace) -> Results:
    pair = Pair(Launcher.parse(args.baseline), Launcher.parse(args.candidate))
    chosen = args.only or EXPERIMENTS
    # The first job would otherwise pay for reading torch from the disk.
    subprocess.run([sys.executable, "-c", "import torch._dynamo"], check=True)
    results = Results(pair, {name: getattr(args, name) for name in ("quick", *FULL)})
    if "restart" in chosen:
        results.restarts = measure_restarts(pair, rounds=args.rounds, report=say)
    if "overhead" in chosen:
        rounds = (args.rounds + 1) // 2
        results.overhead = measure_overhead(pair, rounds=rounds, window_s=args.window, report=say)
    if "steady" in chosen:
        results.steady = measure_steady_state(
            pair, sessions=args.sessions, pairs=args.pairs, block=args.block, report=say
        )
    return results


def main() -> int:
    args = parse_args()
    return conduct(lambda: measure(args), table=table, document=document, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
