"""One job on four machines, and a fault every few seconds: it ends as it would have without them.

    python tests/sdk/soak.py --minutes 15 --every 10 --seed 1

prints what was done and what it cost, and then everything that should not be. Whoever starts nodes on real machines
starts lost ones again; so does this. A fault comes when the job is bound to outlast it: somebody keeps the state, and
those who hear each other are enough to go on (docs/decisions/0012-succession.md).
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, count, islice, pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from jobs import is_stopped, kill, until
from machines import Machine, joined, obstacle
from sites import NUM_SAMPLES, START_S, End, Site

NUM_MACHINES, MIN_NODES = 4, 2
LEASE_S = 3.0
FLAGS = (
    "--nnodes", f"{MIN_NODES}:{NUM_MACHINES}", "--hang-timeout", "2:30", "--max-restarts", "1000",
    "--rdzv-conf", "keep_alive_interval=0.5,keep_alive_max_attempt=6,join_timeout=120,last_call_timeout=60",
)  # fmt: skip
LOOK_S = 0.05
TROUBLE_S = (1.0, 8.0)
"""For how long a network is in trouble: some troubles end before the lease does."""
DELAY_S = 0.2
AWAY_S = 1.0
"""Until a node that has ended is started again."""
STALL_S = 90.0
"""Without a step the job is taken for lost: every machine may have to import torch again, and may be busy."""
BEAR_S = 120.0
"""For the job to come to where it can bear the next fault: nodes may have to start again, on a busy machine."""
ASK_S = 0.5


@dataclass
class Struck:
    """A fault that was done to the job."""

    at: float
    name: str
    whom: str


@dataclass
class Soak:
    """The job and who looks after it."""

    site: Site
    rng: random.Random
    struck: list[Struck] = field(default_factory=list)
    heals: dict[str, float] = field(default_factory=dict)
    """When the trouble of a machine's network ends."""
    doubted_until: dict[str, float] = field(default_factory=dict)
    """A step that a machine's worker made before then does not show that it keeps the state."""
    ended_at: dict[str, float] = field(default_factory=dict)
    num_started: int = 0

    def holders(self) -> set[str]:
        """Machines whose workers have the state, and keep it whatever may yet come of the faults so far."""
        newest = {machine.name: self.site.newest_at(machine) for machine in self.site.machines}
        return {name for name, at in newest.items() if at is not None and at > self.doubted_until.get(name, 0.0)}

    def bears(self, fault: Fault, machines: tuple[Machine, ...]) -> bool:
        """Whether the job is bound to outlast this: somebody has the state, and is of those who may go on."""
        struck = {machine.name for machine in machines}
        heard, silent = self.holders() - struck, set(self.heals) | (struck if fault.silences else set())
        # Exactly half goes on with the master it has; another one is elected by more than half.
        needed = len(silent) + 1 if fault.whom is Whom.HOST else max(1, len(silent))
        return len(heard) >= needed and not struck & set(self.heals)

    def strike(self, fault: Fault) -> str:
        """Whom it has struck; empty if the job would not outlast it now."""
        host = self.site.hosting()
        among = [machine for machine in self.site.machines if fault.whom.admits(is_host=machine is host)]
        bearable = [group for group in combinations(among, fault.number) if self.bears(fault, group)]
        if not bearable:
            return ""
        machines = self.rng.choice(bearable)
        doubt_s = fault.strike(self, machines)
        if doubt_s is None:
            return ""
        for machine in machines:
            self.doubted_until[machine.name] = time.monotonic() + doubt_s
        lasts = f" for {doubt_s - LEASE_S:.1f} s" if fault.silences else ""
        return " and ".join(machine.name for machine in machines) + lasts

    def tend(self) -> None:
        """Heal what has lasted long enough, and start nodes again that have ended."""
        now = time.monotonic()
        for machine in self.site.machines:
            if self.heals.get(machine.name, now + 1) <= now:
                del self.heals[machine.name]
                machine.heal()
            if self.site.job(machine).process.poll() is not None:
                since = self.ended_at.setdefault(machine.name, now)
                if now - since >= AWAY_S:
                    del self.ended_at[machine.name]
                    self.site.start(machine)
                    self.num_started += 1

    def is_calm(self) -> bool:
        return not self.heals and not self.ended_at


# --- faults: each says for how long a machine may yet lose its workers by it; None if it could not be done ---------


class Whom(Enum):
    ANYBODY = "anybody"
    HOST = "the machine of the master"
    OTHERS = "any other machine"

    def admits(self, *, is_host: bool) -> bool:
        return self is Whom.ANYBODY or (self is Whom.HOST) == is_host


@dataclass(frozen=True)
class Fault:
    strike: Callable[[Soak, tuple[Machine, ...]], float | None]
    whom: Whom = Whom.OTHERS
    number: int = 1
    silences: bool = False


def signal_worker(number: int) -> Fault:
    def strike(soak: Soak, machines: tuple[Machine, ...]) -> float | None:
        pid = soak.site.worker(machines[0])
        return 0.0 if pid is not None and not is_stopped(pid) and kill(pid, number) else None

    return Fault(strike, Whom.ANYBODY)


def kill_process(role: str, *, whom: Whom = Whom.OTHERS, doubt_s: float = 0.0) -> Fault:
    def strike(soak: Soak, machines: tuple[Machine, ...]) -> float | None:
        pid = soak.site.job(machines[0]).find(role)
        return doubt_s if pid is not None and kill(pid) else None

    return Fault(strike, whom)


def kill_nodes(number: int = 1, whom: Whom = Whom.OTHERS) -> Fault:
    def strike(soak: Soak, machines: tuple[Machine, ...]) -> float:
        soak.site.destroy(*machines)
        return 0.0

    return Fault(strike, whom, number)


def trouble(begin: Callable[[Machine], None], *, whom: Whom = Whom.OTHERS) -> Fault:
    """Let something be wrong with a machine's network for a while."""

    def strike(soak: Soak, machines: tuple[Machine, ...]) -> float:
        lasts_s = soak.rng.uniform(*TROUBLE_S)
        begin(machines[0])
        soak.heals[machines[0].name] = time.monotonic() + lasts_s
        return lasts_s + LEASE_S

    return Fault(strike, whom, silences=True)


FAULTS = {
    "worker killed": signal_worker(signal.SIGKILL),
    "worker stopped": signal_worker(signal.SIGSTOP),
    "agent killed": kill_process("agent"),
    "node killed": kill_nodes(),
    "two nodes killed": kill_nodes(2),
    "cut off": trouble(Machine.cut_off),
    "not heard": trouble(Machine.mute),
    "hears nothing": trouble(Machine.deafen),
    "slow link": trouble(lambda machine: machine.slow_down(DELAY_S)),
    # One that comes back too late has been succeeded, and its node has killed its workers.
    "master killed": kill_process("master", whom=Whom.HOST, doubt_s=LEASE_S),
}

HOST_FAULTS = {
    "master's node killed": kill_nodes(whom=Whom.HOST),
    "master cut off": trouble(Machine.cut_off, whom=Whom.HOST),
}


@dataclass(frozen=True)
class Plan:
    num_faults: int
    every_s: float
    seed: int
    faults: dict[str, Fault] = field(default_factory=lambda: FAULTS)

    def deal(self, rng: random.Random) -> Iterator[str]:
        """Names of faults; each comes up again and again."""
        endless = (name for _ in count() for name in rng.sample(list(self.faults), len(self.faults)))
        return islice(endless, self.num_faults)


# --- the run --------------------------------------------------------------------------------------------------


def play(machines: list[Machine], folder: Path, plan: Plan) -> tuple[Soak, list[End]]:
    """The job with its faults, to its end."""
    rng = random.Random(plan.seed)
    soak = Soak(Site(machines, folder, *FLAGS), rng)
    site = soak.site
    site.start(machines[0])
    site.host.wait_for("node_joined", within_s=START_S)
    site.start(*machines[1:])
    site.await_training(*machines)
    began = time.monotonic()
    for name in plan.deal(rng):
        whom = await_strike(soak, plan.faults[name], name)
        soak.struck.append(Struck(time.monotonic(), name, whom))
        sys.stderr.write(f"{soak.struck[-1].at - began:6.1f} s  {name}: {whom}\n")
        while time.monotonic() < soak.struck[-1].at + plan.every_s:
            look_after(soak)
    until(lambda: look_after(soak) or soak.is_calm(), within_s=START_S, what="all nodes are back", tell=site.story)
    site.await_training(*machines)
    return soak, site.finish()


def await_strike(soak: Soak, fault: Fault, name: str) -> str:
    """Whom the fault has struck, as soon as the job could bear it."""
    deadline = ask_at = time.monotonic()
    deadline += BEAR_S
    while True:
        if time.monotonic() >= ask_at:
            ask_at = time.monotonic() + ASK_S
            if whom := soak.strike(fault):
                return whom
        assert time.monotonic() < deadline, f"not within {BEAR_S:g} s: the job can bear {name!r}\n{soak.site.story()}"
        look_after(soak)


def look_after(soak: Soak) -> None:
    soak.tend()
    site = soak.site
    if time.monotonic() - newest_at(site) > STALL_S:
        raise AssertionError(f"the job does not go on\n{site.story()}")
    time.sleep(LOOK_S)


def newest_at(site: Site) -> float:
    return max(path.stat().st_mtime for path in site.folder.glob("steps-*")) - time.time() + time.monotonic()


# --- what must hold -------------------------------------------------------------------------------------------


def complaints(soak: Soak, ends: list[End]) -> list[str]:
    """Everything in which the job falls short of one without faults."""
    site, found = soak.site, []
    if len(ends) != NUM_MACHINES or len({(end.uses, end.weights) for end in ends}) != 1:
        found.append(f"the workers have not ended alike: {ends}")
    # The weights that count are those of the undisturbed run if every sample was used once an epoch.
    found += [
        f"rank {end.rank} has not used every sample {end.uses} times" for end in ends if end.num_samples != NUM_SAMPLES
    ]
    found += repeated_steps(site)
    generations = repaired_generations(site)
    if sorted(set(generations)) != generations:
        found.append(f"generations do not always grow: {generations}")
    if restarts := site.events("job_finished")[0]["restarts"]:
        reasons = [event["reason"] for event in site.events("stopping")]
        found.append(f"all workers were started again {restarts} times: {reasons}")
    return found


def repaired_generations(site: Site) -> list[int]:
    """Of the worlds in which a step was made, in the order of these worlds."""
    opened = {event["number"]: event["generation"] for event in site.events("incident_opened")}
    closed = [event["number"] for event in site.events("incident_closed") if event["verdict"] == "repaired"]
    return [opened[number] for number in closed]


def repeated_steps(site: Site) -> list[str]:
    """No process goes back, and none makes a step that another one has made in its rank and lived to build upon.

    One that was cut off may have made its last step alone: that is lost with it, and others make the step again.
    """
    found, makers = [], defaultdict(list)
    last = {pid: notes[-1].step for pid, notes in site.notes().items() if notes}
    for pid, notes in site.notes().items():
        steps = [note.step for note in notes]
        if sorted(set(steps)) != steps:
            found.append(f"{pid} went back: {steps}")
        for note in notes:
            makers[note.step, note.rank].append((note.at, pid))
    repeated: Counter[tuple[int, int, int]] = Counter()
    for (step, rank), made in makers.items():
        for (_, earlier), (_, later) in pairwise(sorted(made)):
            repeated[rank, earlier, later] += last[earlier] != step
    return found + [
        f"{number} steps of rank {rank} were made by {earlier} and again by {later}"
        for (rank, earlier, later), number in repeated.items()
        if number
    ]


def table(soak: Soak) -> str:
    """What each kind of fault cost: for how long nobody made a step, until the next fault."""
    ends = sorted(note.at for notes in soak.site.notes().values() for note in notes)
    pauses: dict[str, list[float]] = {}
    nexts = [struck.at for struck in soak.struck[1:]] + [ends[-1]]
    for struck, following in zip(soak.struck, nexts, strict=True):
        times = [struck.at, *(at for at in ends if struck.at < at <= following), following]
        pauses.setdefault(struck.name, []).append(max(b - a for a, b in pairwise(times)))
    lines = [f"{'fault':20} {'times':>5}   longest pause of all workers, s: median [least-most]"]
    for name, each in sorted(pauses.items()):
        each.sort()
        lines.append(f"{name:20} {len(each):5}   {each[len(each) // 2]:6.2f} [{each[0]:.2f}-{each[-1]:.2f}]")
    opened, closed = (soak.site.events(f"incident_{what}") for what in ("opened", "closed"))
    repaired = sorted(event["total_ms"] / 1000 for event in closed if event["verdict"] == "repaired")
    lines.append(f"{sum(map(len, pauses.values()))} faults; {len(opened)} incidents, {len(repaired)} of them repaired")
    lines.append(f"a repair took {repaired[len(repaired) // 2]:.2f} s [{repaired[0]:.2f}-{repaired[-1]:.2f}]")
    lines.append(
        f"{soak.num_started} nodes started again; {max(n.step for ns in soak.site.notes().values() for n in ns)} steps"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--every", type=float, default=10.0, metavar="S", help="from one fault to the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", action="store_true", help="the master's own node is lost and cut off too")
    parser.add_argument("--keep", type=Path, help="leave the logs in this directory")
    options = parser.parse_args()
    if reason := obstacle():
        parser.error(reason)
    # Whoever ends us wants our processes to end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    faults = FAULTS | HOST_FAULTS if options.master else FAULTS
    plan = Plan(round(options.minutes * 60 / options.every), options.every, options.seed, faults)
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        with joined(NUM_MACHINES, root) as machines:
            soak, ends = play(machines, root / "site", plan)
            found = complaints(soak, ends)
            sys.stdout.write("\n".join([table(soak), *found, "it held" if not found else "it did not hold"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
