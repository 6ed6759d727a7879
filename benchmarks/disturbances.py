"""What is measured of a repair: a job is disturbed once, trains on to its end, and is held against an
undisturbed one."""

import json
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

from experiments import RECOVER_S, clean_machine
from harness import SDK_WORKLOAD, START_S, Job, JobFailed, Launcher
from records import Attempt, Record
from sizes import LARGE_BATCH, NUM_SAMPLES, SMALL_BATCH

END_S = 180.0
"""From the recovery to the end of the job; far above what the steps that are left take."""
STANDBY_S = 30.0
SETTLE_S = 0.5
"""From a standby's last line before its loop to it waiting there."""
EVENTS = "events.jsonl"

Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """When a job is disturbed, and when it ends. The fault is half-way between two checkpoints."""

    steps: int
    fault_after: int
    checkpoint_every: int
    global_batch: int


SMALL = Plan(steps=200, fault_after=50, checkpoint_every=20, global_batch=SMALL_BATCH)
LARGE = Plan(steps=20, fault_after=15, checkpoint_every=10, global_batch=LARGE_BATCH)


@dataclass(frozen=True)
class System:
    """One way to keep a job running."""

    name: str
    launcher: Launcher
    has_standby: bool = False
    hang_flags: tuple[str, ...] = ()
    """For the launcher, where a rank will be stopped."""
    hang_arguments: tuple[str, ...] = ()
    """The same for the script."""
    times_steps: int = 1
    """A job of this system is so many times longer: it trains on while a rank is replaced, and must not end before."""
    is_peer: bool = False
    """Not ours and not torchrun: it may fail in any way and must not spoil the rest."""

    @property
    def has_sdk(self) -> bool:
        return self.launcher.script == SDK_WORKLOAD

    def own(self, plan: Plan) -> Plan:
        return replace(plan, steps=self.times_steps * plan.steps)


@dataclass(frozen=True)
class Fault:
    """A signal to one rank, or with no signal damaged memory, reported by the script."""

    name: str
    rank: int
    signal: signal.Signals | None


KILLS = [Fault(f"SIGKILL of rank {rank}", rank, signal.SIGKILL) for rank in (2, 0)]
STOPS = [Fault(f"SIGSTOP of rank {rank}", rank, signal.SIGSTOP) for rank in (2, 0)]
DAMAGE = Fault("MemoryDamaged on rank 2", 2, None)


@dataclass(frozen=True)
class Clean:
    """An undisturbed run."""

    system: str
    weights: str
    step_s: float


@dataclass(frozen=True)
class Sample:
    """One disturbed job."""

    system: str
    fault: str
    new_step_s: float | None
    """From the fault to the first new step on all ranks; for damaged memory, the time over an ordinary step."""
    others_new_step_s: float | None = None
    """The same without the disturbed rank: a system may train on before that one is replaced."""
    hang_deadline_s: float | None = None
    """How long the launcher let the stopped rank be."""
    steps_run_again: int | None = None
    """Steps that some rank had finished and that were begun once more."""
    samples_lost: int | None = None
    same_weights: bool | None = None
    """Whether every rank ended with the weights of the undisturbed run."""
    incidents: list[dict[str, Any]] = field(default_factory=list)
    """Holdfast's own account: strategy, total_ms and timings_ms of each incident."""
    failure: str | None = None


def measure_clean(system: System, plan: Plan, *, report: Report) -> Clean:
    """What an undisturbed job ends with, and how long its steps take."""
    with clean_machine(), make_job(system, system.own(plan)) as job:
        job.wait_for_end(timeout_s=START_S + END_S)
        weights = set(job.weights())
        clean = Clean(system.name, weights.pop(), ordinary_step_s(job.steps()))
    if weights:
        raise JobFailed(f"ended with different weights on its ranks ({system.name}, undisturbed)")
    report(f"undisturbed  {system.name}: {clean.step_s * 1000:.1f} ms a step, weights {clean.weights}")
    return clean


def measure_disturbed(system: System, fault: Fault, plan: Plan, *, clean: Clean) -> Sample:
    launcher, plan = system.launcher, system.own(plan)
    if fault.signal is signal.SIGSTOP:
        launcher = launcher.with_(flags=system.hang_flags, arguments=system.hang_arguments)
    if fault.signal is None:
        launcher = launcher.with_(arguments=[f"--damage-at={plan.fault_after}"])
    with clean_machine(), make_job(System(system.name, launcher), plan) as job:
        try:
            if system.has_standby:
                wait_for_standby(job)
            time_s = wait_out(job, fault, plan)
            job.wait_for_end(timeout_s=END_S)
        except JobFailed as failure:
            others_s = others_new_step_s(job, fault.rank)
            return Sample(system.name, fault.name, None, others_new_step_s=others_s, failure=str(failure))
        attempts = job.attempts()
        return Sample(
            system.name,
            fault.name,
            time_s,
            others_new_step_s=others_new_step_s(job, fault.rank),
            hang_deadline_s=hang_deadline_s(job.folder / EVENTS),
            steps_run_again=count_steps_run_again(job.steps(), attempts),
            samples_lost=count_samples_lost(attempts, plan),
            same_weights=set(job.weights()) == {clean.weights},
            incidents=read_incidents(job.folder / EVENTS),
        )


def make_job(system: System, plan: Plan) -> Job:
    return Job(
        system.launcher.with_(arguments=[f"--steps={plan.steps}"]),
        checkpoint_every=plan.checkpoint_every,
    )


def wait_for_standby(job: Job) -> None:
    """A standby comes a while after the workers; a fault before that would be repaired without it."""
    job.wait_for_step(1)
    job.wait_until(lambda: any(job.folder.glob("standby-*[0-9]")), what="a standby", timeout_s=STANDBY_S)
    sleep(SETTLE_S)


def wait_out(job: Job, fault: Fault, plan: Plan) -> float:
    """Disturb the job; seconds until it is past the fault."""
    if fault.signal is None:
        job.wait_for_step(plan.fault_after + 1)
        return time_over_ordinary_s(job.steps(), plan.fault_after)
    job.wait_for_step(plan.fault_after)
    pid, at = job.signal_worker(fault.rank, fault.signal)
    new_step_at: list[float] = []

    def recovered() -> bool:
        steps = job.steps()
        if steps[fault.rank][-1].pid == pid:
            return False
        new_step_at[:] = first_new_step_at(steps, since=at)
        return bool(new_step_at)

    job.wait_until(recovered, what=f"a new step after the {fault.name}", timeout_s=RECOVER_S)
    return new_step_at[0] - at


def first_new_step_at(steps: Sequence[Sequence[Record]], *, since: float) -> list[float]:
    """When all ranks had done the first step above any that a rank had done by `since`; empty if not yet."""
    last = max(record.step for records in steps for record in records if record.at <= since)
    # Only of the process that now has the rank: one that was replaced may have done a step in flight.
    new = [
        {r.step: r.at for r in records if r.at > since and r.step > last and r.pid == records[-1].pid}
        for records in steps
    ]
    common = set.intersection(*map(set, new))
    return [max(times[min(common)] for times in new)] if common else []


def others_new_step_s(job: Job, rank: int) -> float | None:
    """From the signal to the first step that all ranks but this one began and finished after it, above any before."""
    if (at := job.signalled_at) is None:
        return None
    steps, attempts = job.steps(), job.attempts()
    last = max(record.step for records in steps for record in records if record.at <= at)
    # Begun after it: a step in flight can end without the disturbed rank, which had done its part.
    new = [
        {
            r.step: r.at
            for r in steps[other]
            if r.step > last and r.step in {a.step for a in attempts[other] if a.at > at}
        }
        for other in range(len(steps))
        if other != rank
    ]
    common = set.intersection(*map(set, new))
    return max(times[min(common)] for times in new) - at if common else None


def ordinary_step_s(steps: Sequence[Sequence[Record]]) -> float:
    return median(b.at - a.at for records in steps for a, b in pairwise(records))


def time_over_ordinary_s(steps: Sequence[Sequence[Record]], step: int) -> float:
    """How much longer this step took on all ranks together."""
    done = [max(r.at for records in steps for r in records if r.step == number) for number in (step - 1, step)]
    return done[1] - done[0] - ordinary_step_s(steps)


def count_steps_run_again(steps: Sequence[Sequence[Record]], attempts: Sequence[Sequence[Attempt]]) -> int:
    finished_at: dict[int, float] = {}
    for record in (r for records in steps for r in records):
        finished_at[record.step] = min(record.at, finished_at.get(record.step, record.at))
    # Without a fault nobody begins a step that another rank has finished: its gradients were needed for it.
    again = {a.step for ranks in attempts for a in ranks if a.at > finished_at.get(a.step, a.at)}
    return len(again)


def count_samples_lost(attempts: Sequence[Sequence[Attempt]], plan: Plan) -> int:
    """Samples that some epoch should have had and did not; the last attempt of a step is the one that counts."""
    used: dict[tuple[int, int], tuple[int, ...]] = {}
    for rank, mine in enumerate(attempts):
        for attempt in mine:
            used[attempt.step, rank] = attempt.ids
    steps_per_epoch = NUM_SAMPLES // plan.global_batch
    seen = {((step - 1) // steps_per_epoch, sample) for (step, _), ids in used.items() for sample in ids}
    return plan.steps * plan.global_batch - len(seen)


def read_incidents(path: Path) -> list[dict[str, Any]]:
    """Strategy and timings of each incident that Holdfast wrote down."""
    found: dict[int, dict[str, Any]] = {}
    for entry in read_events(path):
        if entry["kind"] == "incident_opened":
            found[entry["number"]] = {"strategy": entry["strategy"]}
        if entry["kind"] == "incident_closed":
            found[entry["number"]] |= {key: entry[key] for key in ("verdict", "total_ms", "timings_ms")}
    return list(found.values())


def hang_deadline_s(path: Path) -> float | None:
    """How long a rank was let be before it was taken for hung, as Holdfast wrote it down."""
    for entry in read_events(path):
        if entry["kind"] == "worker_failed" and entry["failure"]["error"].startswith("hung: "):
            found = re.search(r"for more than ([\d.]+) s", entry["failure"]["error"])
            return float(found[1]) if found else None
    return None


def read_events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
