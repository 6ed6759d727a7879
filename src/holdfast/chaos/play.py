"""Playing an experiment: the job is started, things are done to it when they are due, and the end is judged."""

from __future__ import annotations

import time
from dataclasses import dataclass

from holdfast.chaos.evidence import Evidence
from holdfast.chaos.expectations import Finding, judge
from holdfast.chaos.experiment import Action, After, End, Experiment, Scale, Strike
from holdfast.chaos.reference import undisturbed
from holdfast.chaos.stage import Show, Stage

ALWAYS = {"orphans", "generations"}
"""What holds even where nothing is repaired."""
START_S = 240.0
"""For what the first action waits for: on a busy machine, a job takes its time to start."""
MOST_S = 3600.0
"""No experiment takes longer, whatever happens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    experiment: Experiment
    negative: bool
    evidence: Evidence
    findings: tuple[Finding, ...]
    took_s: float
    output: str

    @property
    def met(self) -> bool:
        """Whether everything came out as expected."""
        return all(finding.met for finding in self.findings)

    @property
    def passed(self) -> bool:
        """Of a negative control: whether it was struck, what must not be met was not, and what always holds did."""
        if not self.negative:
            return self.met
        failed = {finding.expected.partition(":")[0] for finding in self.findings if not finding.met}
        return bool(self.evidence.struck_at) and failed >= set(self.experiment.negative.fails) and not failed & ALWAYS

    @property
    def verdict(self) -> str:
        return "PASS" if self.met else "FAIL"


def play(experiment: Experiment, *, negative: bool, show: Show) -> Played:
    chosen = experiment.negated() if negative else experiment
    began_at = time.monotonic()
    with Stage(chosen.given, show=show, limit_s=MOST_S) as stage:
        done = _act(stage, chosen)
        evidence = stage.conclude()
        output = stage.output()
    if any(each.name == "weights" for each in chosen.then):
        compare_weights(evidence)
    findings = [judge(each, evidence) for each in chosen.then]
    whole = Finding(f"actions: {len(chosen.when)} done", f"{done} done", done == len(chosen.when))
    took_s = time.monotonic() - began_at
    return Played(
        experiment=experiment,
        negative=negative,
        evidence=evidence,
        findings=(whole, *findings),
        took_s=took_s,
        output=output,
    )


def compare_weights(evidence: Evidence) -> None:
    """Add an undisturbed run of as many ranks and epochs, to a training that came to its end and kept its size."""
    epochs = evidence.of("epoch")
    sizes = {record["world"] for record in evidence.of("step")}
    if epochs and evidence.of("end") and len(sizes) == 1:
        evidence.reference = undisturbed(sizes.pop(), epochs[-1]["epoch"] + 1)


def _act(stage: Stage, experiment: Experiment) -> int:
    """Do one action after the other, then wait for the end of the job; how many were done."""
    patience_s = experiment.given.patience_s
    num_seen = 0
    for number, action in enumerate(experiment.when):
        waiting = Waiting(stage, action.after, num_seen)
        limit_s = max(patience_s, START_S) if number == 0 else patience_s
        deadline = time.monotonic() + limit_s
        while not waiting.is_over():
            if not stage.look():
                return number
            if time.monotonic() >= deadline:
                stage.stop(f"not within {limit_s:g} s: {action.after}, to {action.act}")
                return number
            stage.wait_a_little()
        num_seen = len(stage.evidence.events)
        if not _do(stage, action):
            stage.stop(f"could not {action.act}")
            return number
    deadline = time.monotonic() + patience_s
    while stage.look():
        if time.monotonic() >= deadline:
            stage.stop(f"the job did not end within {patience_s:g} s")
            return len(experiment.when)
        stage.wait_a_little()
    return len(experiment.when)


def _do(stage: Stage, action: Action) -> bool:
    match action.act:
        case Strike():
            return stage.strike(action.act)
        case Scale():
            return stage.scale(action.act)
        case End():
            stage.end()
            return True


class Waiting:
    """Whether what an action waits for has come: its event, then its steps, then its seconds."""

    def __init__(self, stage: Stage, after: After, num_seen: int) -> None:
        self._stage = stage
        self._after = after
        self._wanted = after.event
        self._seen = num_seen
        self._num_steps: int | None = None
        self._since: float | None = None

    def is_over(self) -> bool:
        return self._has_event() and self._has_steps() and self._has_waited()

    def _has_event(self) -> bool:
        events = self._stage.evidence.events
        while self._wanted and self._seen < len(events):
            event = events[self._seen]
            self._seen += 1
            if all(str(event.get(name)) == value for name, value in self._wanted.items()):
                self._wanted = {}
        return not self._wanted

    def _has_steps(self) -> bool:
        if self._num_steps is None:
            self._num_steps = self._stage.num_steps()
        return self._stage.num_steps() >= self._num_steps + self._after.steps

    def _has_waited(self) -> bool:
        if self._since is None:
            self._since = time.monotonic()
        return time.monotonic() >= self._since + self._after.seconds
