"""Price repair on a GPU: what the protection adds to a step, and what a fault of the device costs.

Needs one GPU with NCCL. Jobs with and without the SDK take turns; then a device-side assertion is failed in one of two
ranks that share the GPU, with and without a standby. Progress goes to stderr, the result as JSON to stdout.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import tempfile
from pathlib import Path

from program import say

WORKLOAD = Path(__file__).with_name("cuda_workload.py")
WIDTHS = {"small": 512, "medium": 4096, "large": 12288}
LIMIT_S = 180.0


def play(launcher: list[str], *arguments: object) -> list[dict]:
    """The JSON lines that a job printed."""
    command = [*launcher, str(WORKLOAD), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def price_steps(launcher: list[str], *, rounds: int, steps: int) -> dict[str, dict[str, float]]:
    found = {}
    for name, width in WIDTHS.items():
        times: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(rounds):
            for sdk in (False, True) if turn % 2 == 0 else (True, False):
                flags = ["--sdk"] if sdk else []
                line = play(launcher, "--steps", steps, "--width", width, *flags)[0]
                times[sdk].append(line["step_ms"])
                say(f"{name} {'SDK' if sdk else 'DDP'} {line['step_ms']:.3f} ms a step")
        plain, guarded = statistics.median(times[False]), statistics.median(times[True])
        found[name] = {"ddp_ms": plain, "sdk_ms": guarded, "added_ms": guarded - plain, "ratio": guarded / plain}
    return found


def price_fault(launcher: list[str], *, standby: bool) -> dict[str, object]:
    """Two ranks on one GPU, over gloo: one of them loses its context for good."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        flags = ["--nproc-per-node", "2", "--events", str(events), *(["--standby", "1"] if standby else [])]
        steps = ["--sdk", "--width", 512, "--steps", 3000]
        calm = [line for line in play([*launcher, *flags], *steps) if "weights" in line]
        lines = play([*launcher, *flags], *steps, "--assert-at", 2000, "--mark", Path(folder) / "mark")
        told = [json.loads(line) for line in events.read_text().splitlines()]
    ends = [line for line in lines if "weights" in line]
    incident = {}
    for entry in told:
        if entry["kind"] == "incident_opened":
            incident = {"symptom": entry["symptom"], "strategy": entry["strategy"]}
        elif entry["kind"] == "incident_closed":
            incident |= {"verdict": entry["verdict"], "total_ms": entry["total_ms"], "phases": entry["timings_ms"]}
    same = {line["weights"] for line in ends} == {line["weights"] for line in calm}
    say(f"device-side assertion, standby {standby}: {incident.get('verdict')}, same weights: {same}")
    return {**incident, "same_weights": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--holdfast", default="holdfast run", metavar="COMMAND")
    args = parser.parse_args()
    launcher = shlex.split(args.holdfast)
    result = {
        "steps": price_steps([*launcher, "--nproc-per-node", "1"], rounds=args.rounds, steps=args.steps),
        "assertion": price_fault(launcher, standby=False),
        "assertion_with_standby": price_fault(launcher, standby=True),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
