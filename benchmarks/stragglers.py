"""A job of two workers: left alone for a while, then one of them runs for a part of the time only.

Tells how many were accused while nobody was slow, and after how long the slow one was found. Progress goes to stderr.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, sleep

from harness import JobFailed
from program import conduct, say

WORKLOAD = Path(__file__).with_name("stragglers_workload.py")
START_S, FOUND_S = 120.0, 120.0
TURN_S = 0.03
"""A worker that is held up stands still once in each such turn."""
POLL_S = 0.1


class Job:
    """Two workers of one thread each, on one node."""

    def __init__(self, folder: Path) -> None:
        self._events = folder / "events.jsonl"
        self._output = folder / "output"
        command = [sys.executable, "-m", "holdfast.cli.main", "run", "--nproc-per-node", "2", "--hang-timeout", "off"]
        with open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                [*command, "--events", str(self._events), str(WORKLOAD)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def events(self, kind: str) -> list[dict]:
        lines = self._events.read_text().splitlines() if self._events.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def wait_for_start(self) -> dict[str, int]:
        """The workers' pids by rank, once they train."""
        deadline = monotonic() + START_S
        while "training" not in self._output.read_text(errors="replace"):
            self.check(deadline, "did not begin to train")
            sleep(POLL_S)
        return self.events("workers_started")[0]["pids"]

    def check(self, deadline: float, what: str) -> None:
        if self._process.poll() is not None or monotonic() > deadline:
            raise JobFailed(f"{what}\n{self._output.read_text(errors='replace')[-2000:]}")

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


def measure(*, slower: float, healthy_s: float) -> dict:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        job = Job(Path(folder))
        pids = job.wait_for_start()
        until = monotonic() + healthy_s
        while monotonic() < until:
            job.check(until + 1.0, "ended")
            sleep(POLL_S)
        accused = len(job.events("straggler_found"))
        began = monotonic()
        found: list[dict] = []
        still_s = TURN_S * slower / (1.0 + slower)
        while not found and monotonic() - began < FOUND_S:
            for _ in range(10):
                os.kill(pids["1"], signal.SIGSTOP)
                sleep(still_s)
                os.kill(pids["1"], signal.SIGCONT)
                sleep(TURN_S - still_s)
            found = job.events("straggler_found")[accused:]
        took_s = monotonic() - began
        job.end()
    rank = found[0]["rank"] if found else None
    return {"accused": accused, "found_s": took_s if found else None, "rank": rank, "text": found and found[0]["text"]}


def measure_all(options: argparse.Namespace) -> list[dict]:
    results = []
    for number in range(options.rounds):
        results.append(measure(slower=options.slower, healthy_s=options.healthy))
        say(f"round {number + 1}: {results[-1]}")
    return results


def table(results: list[dict], options: argparse.Namespace) -> str:
    right = [one["found_s"] for one in results if one["rank"] == 1]
    minutes = options.rounds * options.healthy / 60
    lines = [
        f"accused while nobody was slow: {sum(one['accused'] for one in results)} in {minutes:g} minutes",
        f"rank 1, {options.slower:.0%} slower, found: {len(right)} of {options.rounds} times",
    ]
    if right:
        lines.append(f"seconds until then: median {statistics.median(right):.1f}, longest {max(right):.1f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how many jobs (default: 3)")
    parser.add_argument("--slower", type=float, default=0.3, help="by how much rank 1 gets slower (default: 0.3)")
    parser.add_argument("--healthy", type=float, default=60.0, help="seconds to leave each alone first (default: 60)")
    parser.add_argument("--json", action="store_true", help="raw samples to stdout, table to stderr")
    options = parser.parse_args()
    return conduct(
        lambda: measure_all(options),
        table=lambda results: table(results, options),
        document=lambda results: results,
        as_json=options.json,
        is_good=lambda results: all(one["rank"] == 1 and not one["accused"] for one in results),
    )


if __name__ == "__main__":
    sys.exit(main())
