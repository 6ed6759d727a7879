"""Time how long a cluster that forms itself takes to form, once its last process has imported torch.

A scheduler and many workers are started at once on one machine. Progress goes to stderr.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, sleep

from harness import JobFailed
from program import conduct, say

WORKLOAD = Path(__file__).with_name("networking_workload.py")
LIMIT_S = 900.0
"""For all processes to import torch; on few cores they do it one after the other."""
POLL_S = 0.1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def form(num_workers: int) -> dict[str, float]:
    """Form one cluster and let it end."""
    cluster = {
        "HOLDFAST_SCHED_HOST": "127.0.0.1",
        "HOLDFAST_SCHED_PORT": str(free_port()),
        "HOLDFAST_WORKER_NUM": str(num_workers),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:

        def start(**variables: str) -> subprocess.Popen[bytes]:
            with open(Path(folder, "output"), "ab") as output:
                return subprocess.Popen(
                    [sys.executable, str(WORKLOAD), folder],
                    env=os.environ | cluster | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )

        launched_at = monotonic()
        processes = [start(HOLDFAST_ROLE="scheduler")]
        processes += [start(HOLDFAST_ROLE="worker", HOLDFAST_NODE_ID=str(rank)) for rank in range(num_workers)]
        await_ends(processes, output=Path(folder, "output"))
        names = ["scheduler", *(f"rank-{rank}" for rank in range(num_workers))]
        scheduler, *workers = (json.loads(Path(folder, name).read_text()) for name in names)
    last_entered_at = max(one["entered_at"] for one in (scheduler, *workers))
    return {
        "imported_s": last_entered_at - launched_at,
        "formed_s": max(one["returned_at"] for one in workers) - last_entered_at,
    }


def await_ends(processes: list[subprocess.Popen[bytes]], *, output: Path) -> None:
    deadline = monotonic() + LIMIT_S
    while any(process.poll() is None for process in processes):
        failed = [process.returncode for process in processes if process.poll()]
        if failed or monotonic() > deadline:
            why = f"has a process that ended with {failed[0]}" if failed else f"did not end within {LIMIT_S:g} s"
            raise JobFailed(f"{why}\n{output.read_text(errors='replace')[-4000:]}")
        sleep(POLL_S)


def table(num_workers: int, rounds: list[dict[str, float]]) -> str:
    lines = [f"{num_workers} workers and a scheduler on one machine, {len(rounds)} rounds: median [least-most]"]
    for key, meaning in (("imported_s", "start to the last import"), ("formed_s", "last import to all connected")):
        values = [one[key] for one in rounds]
        lines.append(f"{meaning:30} {statistics.median(values):8.3f} s [{min(values):.3f}-{max(values):.3f}]")
    return "\n".join(lines)


def measure(*, num_workers: int, num_rounds: int) -> list[dict[str, float]]:
    rounds = []
    for _ in range(num_rounds):
        rounds.append(form(num_workers))
        say(f"imported after {rounds[-1]['imported_s']:.1f} s, formed {rounds[-1]['formed_s']:.3f} s later")
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="raw samples to stdout, table to stderr")
    args = parser.parse_args()
    return conduct(
        lambda: measure(num_workers=args.workers, num_rounds=args.rounds),
        table=lambda rounds: table(args.workers, rounds),
        document=lambda rounds: {"workers": args.workers, "rounds": rounds},
        as_json=args.json,
    )


if __name__ == "__main__":
    sys.exit(main())
