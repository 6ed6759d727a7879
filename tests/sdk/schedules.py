"""Schedules of faults, and what must hold after each: the run is, bit for bit, the one without faults.

    python tests/sdk/schedules.py --count 200 --seed 7

plays as many schedules, prints a line for each and a verdict.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from jobs import Job, kill, start

import holdfast

SCRIPT = Path(__file__).parent / "scripts" / "faulty.py"
SOURCES = str(Path(holdfast.__file__).parents[1])
NUM_RANKS = 4
NUM_STEPS = 100
JOB_S = 150.0
POLL_S = 0.003
MAX_STORY = 3000
MAX_ECHOES = 2

PHASES = (
    "data", "forward", "collective", "backward", "optimizer begins", "optimizer ends", "between optimizers",
    "end of step", "outside", "section", "end of section",
)  # fmt: skip
DEADLY = ("kill", "exit", "segfault", "raise", "stop")
"""The process is gone afterwards."""
CURABLE = ("damage", "hiccup")
"""The process lives on; only guarded functions are cured."""


@dataclass(frozen=True)
class Fault:
    id: int
    step: int | None
    """None for a newcomer that has not come to a step."""
    rank: int
    phase: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} rank {self.rank} {self.phase} {'' if self.step is None else self.step}".strip()


@dataclass
class Schedule:
    faults: list[Fault] = field(default_factory=list)
    echoes: dict[int, int] = field(default_factory=dict)
    """Number of an incident to the rank that is killed, from outside, when it is opened."""
    steps: int = NUM_STEPS

    def __str__(self) -> str:
        echoes = [f"kill rank {rank} at incident {number}" for number, rank in self.echoes.items()]
        return "; ".join([*map(str, self.faults), *echoes]) or "no fault"


def deal(seed: int) -> Iterator[Schedule]:
    """Schedules without end; every pair of phase and kind comes up again and again.

    Never do all ranks go before the first of them is repaired: then the state is lost, whatever one does.
    """
    rng = random.Random(seed)
    cards: list[tuple[str, str]] = []
    while True:
        schedule, twists = Schedule(), rng.choice([("echo", "stillborn"), ("several", "stillborn")])
        for at in (12, 33, 54, 75):
            if not cards:
                cards = [(p, k) for p in PHASES for k in DEADLY + CURABLE if p != "outside" or k in DEADLY]
                rng.shuffle(cards)
            _add_incident(schedule, rng, at + rng.randrange(12), cards.pop(), twists)
        yield schedule


def _add_incident(
    schedule: Schedule, rng: random.Random, step: int, card: tuple[str, str], twists: tuple[str, ...]
) -> None:
    ranks = rng.sample(range(NUM_RANKS), NUM_RANKS)
    _add(schedule, step, ranks[0], *card)
    match rng.choice(["alone", *twists]):
        case "several":
            for rank in ranks[1 : rng.choice((2, 3))]:
                _add(schedule, step, rank, rng.choice(PHASES), rng.choice(DEADLY[:4]))
        case "echo" if len(schedule.echoes) < MAX_ECHOES:
            schedule.echoes[rng.randrange(1, 5)] = ranks[1]
        case "stillborn" if card[1] in DEADLY:
            phase = rng.choice(("start", "build"))
            schedule.faults.append(Fault(len(schedule.faults), None, ranks[0], phase, rng.choice(DEADLY[:3])))


def _add(schedule: Schedule, step: int, rank: int, phase: str, kind: str) -> None:
    if "section" in phase:
        step = step - step % 10 + 9
    schedule.faults.append(Fault(len(schedule.faults), step, rank, phase, kind))


# --- playing one ----------------------------------------------------------------------------------------------


@dataclass
class Played:
    """What a run left behind."""

    code: int
    seconds: float
    notes: list[dict[str, Any]]
    events: list[dict[str, Any]]
    killed: list[int]
    """Processes killed from outside."""
    story: str

    def of(self, what: str) -> list[dict[str, Any]]:
        return [entry for entry in self.notes if entry["what"] == what]

    def stuck(self) -> list[int]:
        """Processes that had to be replaced because gloo never ended their wait."""
        failures = [event["failure"] for event in self.events_of("worker_failed")]
        return [failure["pid"] for failure in failures if failure["error"].startswith("hung: stuck")]

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]


def launch(directory: Path, *args: object) -> Job:
    """Start `holdfast run` of this checkout."""
    directory.mkdir(parents=True, exist_ok=True)
    events = directory / "events.jsonl"
    command = [sys.executable, "-m", "holdfast.cli.main", "run", "--events", str(events), *map(str, args)]
    return start(command, directory=directory, env={"PYTHONPATH": SOURCES})


def play(schedule: Schedule, directory: Path) -> Played:
    directory.mkdir(parents=True)
    plan = {"steps": schedule.steps, "faults": [asdict(fault) for fault in schedule.faults]}
    (directory / "plan.json").write_text(json.dumps(plan))
    began = time.monotonic()
    job = launch(directory, "--nproc-per-node", NUM_RANKS, "--hang-timeout", "2:30", SCRIPT, directory)
    try:
        killed = _accompany(job, schedule, until=began + JOB_S)
        code = job.wait(within_s=max(0.1, began + JOB_S - time.monotonic()))
        job.expect_nothing_left()
    finally:
        job.destroy()
    notes = [
        json.loads(line) for path in sorted(directory.glob("rank*.jsonl")) for line in path.read_text().splitlines()
    ]
    return Played(code, time.monotonic() - began, notes, job.events(), killed, job.story())


def _accompany(job: Job, schedule: Schedule, *, until: float) -> list[int]:
    """Kill whom the schedule says when an incident opens, until the job ends."""
    killed: list[int] = []
    left = dict(schedule.echoes)
    while left and job.process.poll() is None and time.monotonic() < until:
        events = job.events()
        pids = {rank: pid for e in events if e["kind"] == "workers_started" for rank, pid in e["pids"].items()}
        for number in [event["number"] for event in events if event["kind"] == "incident_opened"]:
            # Its rank may be between two processes: then the next one is struck, as soon as it is known.
            pid = pids[str(left[number])] if number in left else None
            if pid is not None and pid not in killed and kill(pid):
                killed.append(pid)
                del left[number]
        time.sleep(POLL_S)
    return killed


# --- what must hold -------------------------------------------------------------------------------------------


def complaints(schedule: Schedule, played: Played, calm: Played) -> list[str]:
    """Everything in which this run falls short of the one without faults."""
    if played.code != 0:
        return [f"exit code {played.code}\n{played.story[-MAX_STORY:]}"]
    found: list[str] = []
    fired = {entry["id"] for entry in played.of("fault")}
    reached = {fault.step for fault in schedule.faults if fault.id in fired}
    # Of several faults in one step, the first may be the end of it for whom the others were meant.
    missed = [fault for fault in schedule.faults if fault.id not in fired and fault.step not in (None, *reached)]
    found += [f"never struck: {fault}" for fault in missed]
    found += _differences(played, calm)
    found += _lost_processes(schedule, played)
    found += _reruns(schedule, played)
    found += [f"read {entry['path']}" for entry in played.of("read")]
    if played.events_of("job_finished")[0]["restarts"]:
        found.append("the job was started again as a whole")
    if found:
        found += [f"incident {event['number']}: {event['symptom']}" for event in played.events_of("incident_opened")]
    return found


def _differences(played: Played, calm: Played) -> list[str]:
    found = []
    for what in ("outside", "evaluated", "final"):
        expected = {(entry["rank"], entry.get("step")): entry for entry in calm.of(what)}
        seen = played.of(what)
        for entry in seen:
            at = (entry["rank"], entry.get("step"))
            # A rank that received a step's outcome has no value of its own.
            own = [name for name in entry.keys() - {"what", "rank", "pid", "step"} if entry[name] is not None]
            differing = [name for name in sorted(own) if entry[name] != expected[at][name]]
            found += [f"rank {at[0]}: {what} {at[1]}: {name} differs" for name in differing]
        done = {(entry["rank"], entry.get("step")) for entry in seen}
        if what == "final":
            found += [f"rank {rank} has not ended" for rank, _ in expected.keys() - done]
    return found[:10]


def _lost_processes(schedule: Schedule, played: Played) -> list[str]:
    """Only processes that a fault struck may be gone, or that gloo did not let go."""
    deadly = {fault.id for fault in schedule.faults if fault.kind in DEADLY}
    struck = {entry["pid"] for entry in played.of("fault") if entry["id"] in deadly} | set(played.killed)
    started = {entry["pid"] for entry in played.of("started")}
    ended = {entry["pid"] for entry in played.of("final")}
    found = [f"process {pid} was lost without need" for pid in started - ended - struck - set(played.stuck())]
    return found + [f"process {pid} was struck and lives" for pid in ended & struck]


def _reruns(schedule: Schedule, played: Played) -> list[str]:
    """Each incident costs a rank one attempt at most, and what is outside runs once."""
    found = []
    num_incidents = len(played.events_of("incident_opened"))
    for rank in range(NUM_RANKS):
        attempts = [entry["step"] for entry in played.of("attempt") if entry["rank"] == rank]
        if len(attempts) - len(set(attempts)) > num_incidents:
            found.append(f"rank {rank} ran {len(attempts)} attempts of {schedule.steps} steps")
    outside = [(entry["pid"], entry["step"]) for entry in played.of("outside")]
    found += [f"{place} ran twice outside" for place in set(outside) if outside.count(place) > 1]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--first", type=int, default=0, help="begin at this one of the seed's schedules")
    parser.add_argument("--keep", type=Path, help="leave the logs in this directory")
    options = parser.parse_args()
    num_failed = num_incidents = num_stuck = 0
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or temporary
        calm = play(Schedule(), Path(root) / "calm")
        dealt = deal(options.seed)
        for index in range(options.first + options.count):
            schedule = next(dealt)
            if index < options.first:
                continue
            try:
                played = play(schedule, Path(root) / str(index))
                found = complaints(schedule, played, calm)
            except AssertionError as error:
                found, played = [str(error)[-MAX_STORY:]], None
            verdict = "FAILED" if found else "ok"
            seconds = f"{played.seconds:5.1f} s" if played else ""
            sys.stdout.write("\n  ".join([f"{index:4} {verdict:6} {seconds} {schedule}", *found]) + "\n")
            sys.stdout.flush()
            num_failed += bool(found)
            if played:
                num_incidents += len(played.events_of("incident_opened"))
                num_stuck += len(played.stuck())
    sys.stdout.write(f"{options.count - num_failed} of {options.count} schedules of seed {options.seed} held\n")
    sys.stdout.write(f"{num_incidents} incidents; {num_stuck} processes replaced because gloo did not let them go\n")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
