"""A training on several machines, with one worker each, watched through what its processes write down."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import Job, is_alive, kill, until
from machines import ADDRESSES, Machine

SCRIPT = Path(__file__).parent / "scripts" / "apart.py"
END = re.compile(r"rank (\d+) pid (\d+) uses \{(\d+)\.0: (\d+)\} weights (\w+)")
NUM_SAMPLES = 272
PORT = 9601
PACE_S = 0.02
NUM_STEPS = 3
"""So many of a world are seen before it is taken for one that trains."""
START_S = 120.0
"""For nodes to import torch and train, on a machine that may be busy."""


@dataclass(frozen=True)
class Note:
    """A step that a process has ended."""

    at: float
    step: int
    rank: int
    size: int


@dataclass(frozen=True)
class End:
    """What a worker had in the end; `uses` is how often each sample was trained on."""

    rank: int
    pid: int
    uses: int
    num_samples: int
    weights: str


class Site:
    """The machines of one job; the first hosts its master."""

    def __init__(self, machines: list[Machine], folder: Path, *flags: object) -> None:
        self.machines = machines
        self.folder = folder
        self.jobs: dict[str, Job] = {}
        """The newest node on each machine, by the machine's name."""
        self.ended: list[Job] = []
        """Nodes in whose place another one was started."""
        self._args = ["--nproc-per-node", 1, "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv-id", "j"]
        self._args += [*flags, SCRIPT, folder, PACE_S]
        folder.mkdir()

    @property
    def host(self) -> Job:
        return self.jobs[self.machines[0].name]

    def start(self, *machines: Machine) -> None:
        """Start a node on each; the first of all must be up before others are started."""
        for machine in machines:
            if machine.name in self.jobs:
                self.ended.append(self.jobs[machine.name])
            self.jobs[machine.name] = machine.run(*self._args, env={"OMP_NUM_THREADS": "1"})

    def job(self, machine: Machine) -> Job:
        return self.jobs[machine.name]

    def destroy(self, *machines: Machine) -> None:
        """All processes of these nodes at once."""
        for pid in [pid for machine in machines for pid in self.job(machine).processes()]:
            kill(pid)

    def give_up(self, machine: Machine) -> None:
        """Nobody starts a node there again."""
        self.ended.append(self.jobs.pop(machine.name))

    # --- what there is ------------------------------------------------------------------------------------------

    def worker(self, machine: Machine) -> int | None:
        """The process on this machine that has made the newest step."""
        newest = self._newest(machine)
        return max(newest, key=lambda pid: newest[pid], default=None)

    def newest_at(self, machine: Machine) -> float | None:
        """When a process that lives on this machine last made a step."""
        return max(self._newest(machine).values(), default=None)

    def _newest(self, machine: Machine) -> dict[int, float]:
        mine = set(self.job(machine).processes())
        return {pid: notes[-1].at for pid, notes in self.notes().items() if pid in mine and notes and is_alive(pid)}

    def notes(self) -> dict[int, list[Note]]:
        """Every process's steps, in order."""
        return {int(path.name.removeprefix("steps-")): _read(path) for path in self.folder.glob("steps-*")}

    def newest_step(self) -> int:
        return max((notes[-1].step for notes in self.notes().values() if notes), default=-1)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """From all nodes, each once: none has heard of all that happened before it came."""
        jobs = (*self.ended, *self.jobs.values())
        told = {(event["at"], event["text"]): event for job in jobs for event in job.events(kind)}
        return [event for _, event in sorted(told.items())]

    def hosting(self) -> Machine:
        """Where the master is."""
        moved = [event["node"] for event in self.events("master_moved")]
        name = moved[-1].rpartition("-")[0] if moved else self.machines[0].name
        return next(machine for machine in self.machines if machine.name == name)

    # --- waiting ------------------------------------------------------------------------------------------------

    def await_preparation(self, *machines: Machine) -> None:
        """On each of these machines a process has come to its loop, and waits there for a rank."""

        def look() -> bool:
            waiting = {pid for pid, notes in self.notes().items() if not notes and is_alive(pid)}
            return all(waiting.intersection(self.job(machine).processes()) for machine in machines)

        names = ", ".join(machine.name for machine in machines)
        until(look, within_s=START_S, what=f"{names} are prepared", tell=self.story)

    def await_training(self, *machines: Machine, size: int | None = None) -> list[Machine]:
        """These machines make some more steps in a world of so many, or of their own number; all who are in it."""
        since, size = self.newest_step(), size or len(machines)
        names = ", ".join(machine.name for machine in machines)

        def look() -> list[Machine] | None:
            training = [machine for machine in self.machines if self._num_steps(machine, since, size) >= NUM_STEPS]
            return training if len(training) == size and set(machines) <= set(training) else None

        return until(look, within_s=START_S, what=f"{names} train in a world of {size}", tell=self.story)

    def _num_steps(self, machine: Machine, since: int, size: int) -> int:
        """The steps after one of them that a live worker of this machine has made in a world of so many."""
        if machine.name not in self.jobs:
            return 0
        mine, notes = set(self.job(machine).processes()), self.notes()
        found = [note for pid in mine & notes.keys() for note in notes[pid]]
        return len([note for note in found if note.step > since and note.size == size])

    def finish(self) -> list[End]:
        """Let the job end well; what its workers had then, by rank."""
        (self.folder / "enough").touch()
        codes = {name: job.wait(within_s=START_S) for name, job in self.jobs.items()}
        assert set(codes.values()) == {0}, f"{codes}\n{self.story()}"
        for job in (*self.jobs.values(), *self.ended):
            job.expect_nothing_left()
        return sorted(ends_of(self.jobs.values()), key=lambda end: end.rank)

    def story(self) -> str:
        parts = [f"--- {name} ---\n{job.err[-2500:]}{job.out[-500:]}" for name, job in self.jobs.items()]
        newest = sorted((notes[-1].at, pid, notes[-1]) for pid, notes in self.notes().items() if notes)[-6:]
        return "\n".join([*parts, *(f"{pid}: {note}" for _, pid, note in newest)])


def ends_of(jobs: Iterable[Job]) -> list[End]:
    found = [match for job in jobs for match in END.findall(job.out)]
    return [End(int(rank), int(pid), int(uses), int(number), weights) for rank, pid, uses, number, weights in found]


def _read(path: Path) -> list[Note]:
    lines = [line.split() for line in path.read_text().splitlines() if line.count(" ") == 3]
    return [Note(float(at), int(step), int(rank), int(size)) for at, step, rank, size in lines]
