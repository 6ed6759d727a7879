"""What is measured: restarts, two jobs taking turns, and a job that sleeps.

Each experiment alternates between the two launchers, because a machine drifts by more over
minutes than most differences are large.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import monotonic, sleep

from harness import Job, JobFailed, Launcher
from processes import end_all_descendants
from records import Record

VICTIM = 2
CHECKPOINT_EVERY = 20
KILL_AFTER_STEP = 50
"""Half-way between two checkpoints: ten steps have to be done again."""
RECOVER_S = 120.0
WARM_UP_STEPS = 20
TURNS_PER_BLOCK = 4

Report = Callable[[str], None]


@dataclass(frozen=True)
class Pair:
    """The launchers under comparison."""

    baseline: Launcher
    candidate: Launcher

    def in_turn(self, turn: int) -> list[tuple[str, Launcher]]:
        """Role and launcher, A B on even turns and B A on odd ones: drift then favours neither."""
        order = [("baseline", self.baseline), ("candidate", self.candidate)]
        return order if turn % 2 == 0 else order[::-1]


@contextmanager
def clean_machine() -> Iterator[None]:
    """What a broken launcher leaves behind must not disturb the next measurement."""
    try:
        yield
    finally:
        end_all_descendants()


@dataclass(frozen=True)
class Restart:
    role: str
    cold_start_s: float
    """From the launch to the first step done by all ranks."""
    last_step: int
    """The highest step that any rank had done before the kill."""
    resumed_after_step: int | None
    new_step_s: float | None
    """From the kill to the step after `last_step`, done by all ranks; None if it never came."""
    failure: str | None = None


def measure_restarts(pair: Pair, *, rounds: int, report: Report) -> list[Restart]:
    samples = []
    for turn in range(rounds):
        for role, launcher in pair.in_turn(turn):
            with clean_machine(), Job(launcher, checkpoint_every=CHECKPOINT_EVERY) as job:
                sample = measure_restart(job, role)
            samples.append(sample)
            outcome = sample.failure or f"new step {sample.new_step_s:.2f} s after the kill"
            report(f"restart {turn + 1}/{rounds}  {role}: cold start {sample.cold_start_s:.2f} s, {outcome}")
    return samples


def measure_restart(job: Job, role: str) -> Restart:
    job.wait_for_step(KILL_AFTER_STEP)
    cold_start_s = max(records[0].at for records in job.steps()) - job.launched_at
    killed_pid, killed_at = job.kill_worker(VICTIM)

    def last_step() -> int:
        return max(r.step for records in job.steps() for r in records if r.at <= killed_at)

    def new_step_at() -> float | None:
        new_step = last_step() + 1
        times = [step_done_at(records, new_step, since=killed_at) for records in job.steps()]
        known = [at for at in times if at is not None]
        replaced = job.steps()[VICTIM][-1].pid != killed_pid
        return max(known) if replaced and len(known) == len(times) else None

    try:
        job.wait_until(lambda: new_step_at() is not None, what="a new step", timeout_s=RECOVER_S)
    except JobFailed as failure:
        return Restart(role, cold_start_s, last_step(), None, None, failure=str(failure))
    done_at = new_step_at()
    assert done_at is not None, "the wait above ended without a failure"
    resumed = next(r.step for r in job.steps()[VICTIM] if r.pid != killed_pid) - 1
    return Restart(role, cold_start_s, last_step(), resumed, done_at - killed_at)


def step_done_at(records: list[Record], step: int, *, since: float) -> float | None:
    """When the process that now holds this rank did `step`."""
    # A survivor may have done it too, in flight when its peer died, before it was replaced.
    pid = records[-1].pid
    return next((r.at for r in records if r.pid == pid and r.step == step and r.at > since), None)


@dataclass(frozen=True)
class Turns:
    """One block of each launcher, done in turns; median seconds per step."""

    session: int
    baseline_step_s: float
    candidate_step_s: float

    @property
    def ratio(self) -> float:
        return self.candidate_step_s / self.baseline_step_s


def measure_steady_state(pair: Pair, *, sessions: int, pairs: int, block: int, report: Report) -> list[Turns]:
    """Both jobs live at once and step in turns; fresh jobs for each session.

    New processes get new luck with memory and caches, which pairs within one session share.
    """
    samples = []
    for session in range(sessions):
        (first, one), (second, other) = pair.in_turn(session)
        gate = max(2, block // TURNS_PER_BLOCK)
        with clean_machine(), Job(one, gate=gate) as one_job, Job(other, gate=gate) as other_job:
            jobs = {first: one_job, second: other_job}
            for job in jobs.values():
                job.run_turn()
            for number in range(pairs):
                turns = take_turns(pair, jobs, session=session)
                samples.append(turns)
                report(
                    f"steady {session * pairs + number + 1}/{sessions * pairs}  "
                    f"{turns.baseline_step_s * 1000:.2f} and "
                    f"{turns.candidate_step_s * 1000:.2f} ms a step, ratio {turns.ratio:.3f}"
                )
    return samples


def take_turns(pair: Pair, jobs: dict[str, Job], *, session: int) -> Turns:
    """A block of each, cut into turns that are short against the drift of the machine."""
    step_s: dict[str, list[float]] = {role: [] for role in jobs}
    for turn in range(TURNS_PER_BLOCK):
        for role, _ in pair.in_turn(turn):
            for records in jobs[role].run_turn():
                # The time to the first step is not among them: it holds the wait at the gate.
                step_s[role] += [b.at - a.at for a, b in pairwise(records)]
    return Turns(session, median(step_s["baseline"]), median(step_s["candidate"]))


@dataclass(frozen=True)
class Overhead:
    role: str
    pss_bytes: int
    sleeping_cpu_percent: float
    """CPU of the launcher's own processes while its workers wait, in percent of one core."""
    training_cpu_percent: float


def measure_overhead(pair: Pair, *, rounds: int, window_s: float, report: Report) -> list[Overhead]:
    samples = []
    for turn in range(rounds):
        for role, launcher in pair.in_turn(turn):
            with clean_machine(), Job(launcher, gate=WARM_UP_STEPS) as job:
                job.run_turn()
                memory = job.pss_bytes()
                sleeping = launcher_cpu_percent(job, window_s=window_s)
                # More than can be done in the window, so that no worker waits.
                job.release(4000)
                training = launcher_cpu_percent(job, window_s=window_s)
            samples.append(Overhead(role, memory, sleeping, training))
            report(
                f"overhead {turn + 1}/{rounds}  {role}: {memory / 1e6:.0f} MB, launcher CPU "
                f"{sleeping:.2f} % (workers asleep), {training:.2f} % (training)"
            )
    return samples


def launcher_cpu_percent(job: Job, *, window_s: float) -> float:
    began_at, cpu_s = monotonic(), job.launcher_cpu_s()
    sleep(window_s)
    return 100 * (job.launcher_cpu_s() - cpu_s) / (monotonic() - began_at)
