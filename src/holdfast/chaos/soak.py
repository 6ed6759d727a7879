"""Random faults against one job, one after the other, and what must hold in spite of them."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from holdfast.chaos.draws import Draw, draw
from holdfast.chaos.evidence import Evidence
from holdfast.chaos.expectations import Finding, judge
from holdfast.chaos.experiment import Expectation, Experiment, Given, Negative
from holdfast.chaos.play import Played, compare_weights
from holdfast.chaos.stage import Show, Stage
from holdfast.platforms.local.network import obstacle
from holdfast.spec.job_file import Entry

START_S = 300.0
"""For the first step; then the soak has failed."""
END_S = 300.0
"""For the training to end once it may; then it is stopped, and the soak has failed."""
PACE_MS = 50.0
UNHURT = 3.0
"""A step that takes longer than so many times the median was held up: only one median of it was productive."""

LEAST_STRUCK = 0.8
"""Of the faults that were due; with fewer of them the soak has failed: it has not shown what it was to show."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    for_s: float
    every_s: float
    seed: int
    num_nodes: int
    budget_s: float

    def given(self) -> Given:
        fields = {
            "roles.*.nodes": str(self.num_nodes),
            "recover.max_restarts": "0",
            "timeouts.beat": "0.5",
            "timeouts.missed_beats": "12",
            "timeouts.shutdown": "10",
            "timeouts.hang": "2:20",
            "relaunch.killed": "1000000",
            "relaunch.hardware": "1000000",
            "relaunch.software": "1000000",
            "relaunch.backoff": "0.2:1",
            "relaunch.quarantine": "1000000",
        }
        return Given({path: Entry(value, "soak") for path, value in fields.items()}, pace_ms=PACE_MS)

    def expectations(self) -> tuple[Expectation, ...]:
        held = {
            "recovers_within": self.budget_s,
            "world_sizes": [self.num_nodes],
            "samples": "once",
            "weights": "equal",
            "generations": "grow",
            "restarts": 0,
            "orphans": "none",
            "exit_code": 0,
        }
        return tuple(Expectation(name, value) for name, value in held.items())

    def experiment(self) -> Experiment:
        says = f"For {self.for_s / 60:g} minutes a random fault every {self.every_s:g} s, from seed {self.seed}"
        why_not = obstacle()
        networks = f"; instead of being cut off, a node is stopped: {why_not}." if why_not else ", as root."
        return Experiment(
            name=f"soak-{self.seed}",
            says=says + networks,
            root="",
            instead="",
            given=self.given(),
            when=(),
            then=self.expectations(),
            negative=Negative("", {}, (), ()),
        )


def soak_job(plan: SoakPlan, *, show: Show) -> tuple[Played, float]:
    """What came of it, and the goodput."""
    began_at = time.monotonic()
    experiment = plan.experiment()
    show(0.0, experiment.says)
    with Stage(experiment.given, show=show, limit_s=plan.for_s + START_S + END_S) as stage:
        _strike_for_a_while(stage, plan)
        evidence = stage.conclude()
        output = stage.output()
    compare_weights(evidence)
    goodput = measure_goodput(evidence)
    findings = [
        judge_faults(evidence),
        *(judge(each, evidence) for each in experiment.then),
        Finding("goodput", f"{goodput:.1%}", met=True),
    ]
    played = Played(
        experiment=experiment,
        negative=False,
        evidence=evidence,
        findings=tuple(findings),
        took_s=time.monotonic() - began_at,
        output=output,
    )
    return played, goodput


def judge_faults(evidence: Evidence) -> Finding:
    """Whether so many were put in that the rest of the verdict means something."""
    done = Counter(action["what"] for action in evidence.actions)
    due = done["fault"] + done["skipped"] + done["failed"]
    enough = done["fault"] >= max(1, LEAST_STRUCK * due) and done["end"] == 1
    return Finding(f"actions: {LEAST_STRUCK:.0%} of the faults due", f"{done['fault']} of {due}", enough)


def _strike_for_a_while(stage: Stage, plan: SoakPlan) -> None:
    if not _wait(stage, START_S, until_step=1):
        stage.stop(f"no step within {START_S:g} s")
        return
    began_at = time.monotonic()
    draws = draw(plan.seed, num_nodes=plan.num_nodes, with_networks=not obstacle())
    due_s = plan.every_s
    while due_s < plan.for_s:
        if not _wait(stage, began_at + due_s - time.monotonic()):
            return
        _strike_once_possible(stage, next(draws), within_s=plan.every_s)
        due_s += plan.every_s
    _wait(stage, began_at + plan.for_s - time.monotonic())
    stage.end()
    if _wait(stage, END_S):
        stage.stop(f"the training did not end within {END_S:g} s")


def _strike_once_possible(stage: Stage, drawn: Draw, *, within_s: float) -> None:
    """A fault that nobody was there for in all that time is skipped; one that has just ended may still seem to be."""
    deadline = time.monotonic() + within_s
    while stage.look():
        is_over = time.monotonic() >= deadline
        strike = drawn.aimed(stage.nodes())
        if strike is not None and (stage.strike(strike, is_last_try=is_over) or is_over):
            return
        if is_over:
            stage.skip(f"{drawn}: nobody to be struck within {within_s:g} s")
            return
        stage.wait_a_little()


def _wait(stage: Stage, for_s: float, *, until_step: int | None = None) -> bool:
    """Whether the job lives at the end of the time, or the step has come."""
    deadline = time.monotonic() + for_s
    while stage.look():
        if until_step is not None and stage.num_steps() >= until_step:
            return True
        if time.monotonic() >= deadline:
            return until_step is None
        stage.wait_a_little()
    return False


def measure_goodput(evidence: Evidence) -> float:
    """Productive step time by wall time, from the first step to the last."""
    times = sorted({record["step"]: record["at"] for record in reversed(evidence.of("step"))}.values())
    gaps: list[float] = [after - before for before, after in pairwise(times)]
    if not gaps:
        return 0.0
    usual_s = statistics.median(gaps)
    productive_s: float = sum(gap if gap <= UNHURT * usual_s else usual_s for gap in gaps)
    return productive_s / sum(gaps)
