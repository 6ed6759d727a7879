"""One job on four machines, and a fault every few seconds: it ends as it would have without them.

    python tests/sdk/soak.py --minutes 15 --every 10 --seed 1

prints what was done and what it cost, and then everything that should not be. Whoever starts nodes on real machines
starts lost ones again; so does this.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from jobs import is_stopped, kill, until
from machines import Machine, joined, obstacle
from sites import NUM_SAMPLES, START_S, End, Site

NUM_MACHINES, MIN_NODES, MIN_FOR_HOST = 4, 2, 3
FLAGS = (
    "--nnodes", f"{MIN_NODES}:{NUM_MACHINES}", "--hang-timeout", "2:30", "--max-restarts", "1000",
    "--rdzv-conf", "keep_alive_interval=0.5,keep_alive_max_attempt=6,join_timeout=120,last_call_timeout=60",
)  # fmt: skip
LOOK_S = 0.05
TROUBLE_S = (1.0, 8.0)
"""For how long a network is in trouble: some troubles end before the lease of 3 s does."""
DELAY_S = 0.2
AWAY_S = 1.0
"""Until a node that has ended is started again."""
STALL_S = 90.0
"""Without a step the job is taken for lost: every machine may have to import torch again, and may be busy."""


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
    ended_at: dict[str, float] = field(default_factory=dict)
    num_started: int = 0

    def victim(self) -> Machine:
        """A machine whose network is well, and which does not host the master."""
        others = [machine for machine in self.site.machines if machine is not self.site.hosting()]
        well = [machine for machine in others if machine.name not in self.heals]
        return self.rng.choice(well or others)

    def trouble(self, begin: Callable[[Machine], None], *, machine: Machine | None = None) -> str:
        """Let something be wrong with a machine's network for a while."""
        machine, lasts_s = machine or self.victim(), self.rng.uniform(*TROUBLE_S)
        begin(machine)
        self.heals[machine.name] = time.monotonic() + lasts_s
        return f"{machine.name} for {lasts_s:.1f} s"

    def living(self) -> dict[str, int]:
        """The world's workers, by the names of their machines."""
        workers = {machine.name: self.site.worker(machine) for machine in self.site.machines}
        return {name: pid for name, pid in workers.items() if pid is not None}

    def host(self) -> Machine | None:
        """The machine of the master, if most of the world would be left without it: others may not go on."""
        return self.site.hosting() if len(self.living()) >= MIN_FOR_HOST else None

    def signal_worker(self, number: int) -> str:
        """Some worker of the world; the last that lives is spared, for with it the state would be lost."""
        living = {name: pid for name, pid in self.living().items() if not is_stopped(pid)}
        if len(living) < MIN_NODES:
            return "nobody"
        name = self.rng.choice(sorted(living))
        kill(living[name], number)
        return name

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


# --- faults: each says whom it struck -------------------------------------------------------------------------


def kill_worker(soak: Soak) -> str:
    return soak.signal_worker(signal.SIGKILL)


def stop_worker(soak: Soak) -> str:
    return soak.signal_worker(signal.SIGSTOP)


def kill_agent(soak: Soak) -> str:
    machine = soak.victim()
    agent = soak.site.job(machine).find("agent")
    return machine.name if agent is not None and kill(agent) else "nobody"


def kill_node(soak: Soak) -> str:
    machine = soak.victim()
    soak.site.destroy(machine)
    return machine.name


def kill_two_nodes(soak: Soak) -> str:
    machines = soak.rng.sample([machine for machine in soak.site.machines if machine is not soak.site.hosting()], 2)
    soak.site.destroy(*machines)
    return " and ".join(machine.name for machine in machines)


def kill_master(soak: Soak) -> str:
    machine = soak.site.hosting()
    master = soak.site.job(machine).find("master")
    return machine.name if master is not None and kill(master) else "nobody"


def kill_host(soak: Soak) -> str:
    machine = soak.host()
    if machine is None:
        return "nobody"
    soak.site.destroy(machine)
    return machine.name


def cut_host_off(soak: Soak) -> str:
    machine = soak.host()
    return "nobody" if machine is None else soak.trouble(Machine.cut_off, machine=machine)


FAULTS: dict[str, Callable[[Soak], str]] = {
    "worker killed": kill_worker,
    "worker stopped": stop_worker,
    "agent killed": kill_agent,
    "node killed": kill_node,
    "two nodes killed": kill_two_nodes,
    "cut off": lambda soak: soak.trouble(Machine.cut_off),
    "not heard": lambda soak: soak.trouble(Machine.mute),
    "hears nothing": lambda soak: soak.trouble(Machine.deafen),
    "slow link": lambda soak: soak.trouble(lambda machine: machine.slow_down(DELAY_S)),
    "master killed": kill_master,
}

HOST_FAULTS: dict[str, Callable[[Soak], str]] = {
    "master's node killed": kill_host,
    "master cut off": cut_host_off,
}


@dataclass(frozen=True)
class Plan:
    duration_s: float
    every_s: float
    seed: int
    faults: dict[str, Callable[[Soak], str]] = field(default_factory=lambda: FAULTS)

    def deal(self, rng: random.Random) -> Iterator[str]:
        """Names of faults without end; each comes up again and again."""
        while True:
            yield from rng.sample(list(self.faults), len(self.faults))


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
    cards, began = plan.deal(rng), time.monotonic()
    strike_at = began
    while time.monotonic() < began + plan.duration_s:
        if time.monotonic() >= strike_at:
            name = next(cards)
            soak.struck.append(Struck(time.monotonic(), name, plan.faults[name](soak)))
            sys.stderr.write(f"{soak.struck[-1].at - began:6.1f} s  {name}: {soak.struck[-1].whom}\n")
            strike_at += plan.every_s
        look_after(soak)
    until(lambda: look_after(soak) or soak.is_calm(), within_s=START_S, what="all nodes are back", tell=site.story)
    site.await_training(*machines)
    return soak, site.finish()


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
        found.append(f"all workers were started again {restarts} times")
    return found


def repaired_generations(site: Site) -> list[int]:
    """Of the worlds in which a step was made, in the order of these worlds."""
    opened = {event["number"]: event["generation"] for event in site.events("incident_opened")}
    closed = [event["number"] for event in site.events("incident_closed") if event["verdict"] == "repaired"]
    return [opened[number] for number in closed]


def repeated_steps(site: Site) -> list[str]:
    """No two processes make a step of one rank, and no process makes a step twice."""
    makers: dict[tuple[int, int], int] = {}
    found = []
    for pid, notes in site.notes().items():
        for note in notes:
            other = makers.setdefault((note.step, note.rank), pid)
            if other != pid:
                found.append(f"step {note.step} of rank {note.rank} was made by {other} and by {pid}")
        steps = [note.step for note in notes]
        if sorted(set(steps)) != steps:
            found.append(f"{pid} went back: {steps}")
    return found


def table(soak: Soak) -> str:
    """What each kind of fault cost: for how long nobody made a step, until the next fault."""
    ends = sorted(note.at for notes in soak.site.notes().values() for note in notes)
    pauses: dict[str, list[float]] = {}
    nexts = [struck.at for struck in soak.struck[1:]] + [ends[-1]]
    for struck, following in zip(soak.struck, nexts, strict=True):
        times = [struck.at, *(at for at in ends if struck.at < at <= following), following]
        if struck.whom != "nobody":
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
    plan = Plan(options.minutes * 60, options.every, options.seed, faults)
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        with joined(NUM_MACHINES, root) as machines:
            soak, ends = play(machines, root / "site", plan)
            found = complaints(soak, ends)
            sys.stdout.write("\n".join([table(soak), *found, "it held" if not found else "it did not hold"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
