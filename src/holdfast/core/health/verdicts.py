"""What the rounds of a check say about each node.

Each metric is judged by itself: a slow network cannot hide behind a fast processor. A node is compared with the others,
never with itself among them, so that two nodes are enough; and with what they showed at the same time, since whatever
disturbs them all is nobody's fault. Slow is what is slower than the others, by more than a margin and by more than
their own noise explains, in every round: one disturbance is forgiven.

A node that fails its own part in every round is bad; tests with it say nothing about its partners. A failed all-reduce
is blamed on a node only if its partner has proved itself with somebody else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from holdfast.core.health.results import ALL_REDUCE, COMPUTE, LOOPBACK, MEMORY, CheckResult, Timing

MARGINS = {COMPUTE: 0.25, MEMORY: 0.5, LOOPBACK: 3.0, ALL_REDUCE: 0.5}
"""How much slower than the others a node may be: less for what varies less. A connection to oneself takes twice as long
by itself, as the two threads at its ends share a core or do not."""
MAX_Z = 4.0
"""Nor is slower what differs by fewer standard deviations of the others."""
MAD_TO_SIGMA = 1.4826


class Fitness(StrEnum):
    FIT = "fit"
    SLOW = "slow"
    FAILED = "failed"
    UNRESOLVED = "unresolved"
    """It failed with a partner, and nobody can tell which of the two it is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    fitness: Fitness
    metric: str = ""
    """By which it was judged, unless it is fit."""
    reason: str = ""


def judge(
    rounds: Sequence[Mapping[str, CheckResult]], *, fit: Collection[str], subjects: Iterable[str]
) -> dict[str, Verdict]:
    """A verdict on each of `subjects`, from the results of each round; `fit` are known to be so."""
    failed = {node: errors[-1] for node in subjects if (errors := _own_errors(rounds, node)) is not None}
    proved = {node for node in {*fit, *_tested(rounds)} if node in fit or _has_passed(rounds, node)}
    verdicts: dict[str, Verdict] = {}
    for node in subjects:
        if node in failed:
            verdicts[node] = Verdict(Fitness.FAILED, "probe", failed[node])
        elif (verdict := _judge_pairs(rounds, node, proved)) is not None:
            verdicts[node] = verdict
        else:
            verdicts[node] = _judge_timings(rounds, node)
    return verdicts


def _shown(result: CheckResult) -> Mapping[str, Timing]:
    pairs = [pair.timing for pair in result.pairs if pair.timing is not None]
    fastest = {ALL_REDUCE: min(pairs, key=lambda timing: timing.ms)} if pairs else {}
    return {**result.timings, **fastest}


def _own_errors(rounds: Sequence[Mapping[str, CheckResult]], node: str) -> list[str] | None:
    """Why a node failed its own part, by round; None if it did not always fail it."""
    errors = [results[node].error for results in rounds if node in results]
    return errors if errors and all(errors) else None


def _tested(rounds: Sequence[Mapping[str, CheckResult]]) -> list[str]:
    return list(dict.fromkeys(node for results in rounds for node in results))


def _outcomes(rounds: Sequence[Mapping[str, CheckResult]], node: str) -> list[tuple[str, str]]:
    """Each test with another node, as that node's name and what went wrong; those that mean nothing are left out."""
    found: list[tuple[str, str]] = []
    for results in rounds:
        own = results.get(node)
        for pair in own.pairs if own is not None and not own.error else ():
            theirs = results.get(pair.peer)
            if theirs is None or theirs.error:
                # It was not there to be tested with.
                continue
            echo = next((other.error for other in theirs.pairs if other.peer == node), "")
            found.append((pair.peer, pair.error or echo))
    return found


def _has_passed(rounds: Sequence[Mapping[str, CheckResult]], node: str) -> bool:
    return any(not error for _, error in _outcomes(rounds, node))


def _judge_pairs(rounds: Sequence[Mapping[str, CheckResult]], node: str, proved: Collection[str]) -> Verdict | None:
    outcomes = _outcomes(rounds, node)
    failed = [(peer, error) for peer, error in outcomes if error]
    if not failed or len(failed) < len(outcomes):
        return None
    for peer, error in failed:
        if peer in proved:
            return Verdict(Fitness.FAILED, ALL_REDUCE, f"its all-reduce with {peer} failed: {error}")
    peer, error = failed[-1]
    return Verdict(Fitness.UNRESOLVED, ALL_REDUCE, f"its all-reduce with {peer} failed: {error}")


def _judge_timings(rounds: Sequence[Mapping[str, CheckResult]], node: str) -> Verdict:
    by_round = [_slow_metrics(results, node) for results in rounds]
    slow = [metric for metric in MARGINS if all(metric in each for each in by_round)]
    if not slow:
        return Verdict(Fitness.FIT)
    # The one that tells most: on a busy machine others may be beyond their margin too.
    worst = max(slow, key=lambda metric: min(each[metric].ratio for each in by_round))
    return Verdict(Fitness.SLOW, worst, str(by_round[-1][worst]))


@dataclass(frozen=True, slots=True)
class _Slowness:
    ms: float
    others_ms: float

    @property
    def ratio(self) -> float:
        return self.ms / self.others_ms if self.others_ms else math.inf

    def __str__(self) -> str:
        times = f"{self.ratio:.1f} times" if self.others_ms else "no time at all"
        return f"{self.ms:.1f} ms where the others take {self.others_ms:.1f} ms ({times})"


def _slow_metrics(results: Mapping[str, CheckResult], node: str) -> dict[str, _Slowness]:
    """In what a node was slow in one round, and by how much."""
    shown = {name: _shown(result) for name, result in results.items() if not result.error}
    own = shown.pop(node, {})
    slow: dict[str, _Slowness] = {}
    for metric, timing in own.items():
        theirs, margin = [timings[metric] for timings in shown.values() if metric in timings], MARGINS[metric]
        if not theirs:
            continue
        reference = median(each.ms for each in theirs)
        spread = MAD_TO_SIGMA * median(abs(each.ms - reference) for each in theirs)
        noise = max(spread, median(each.noise_ms for each in theirs))
        excess = timing.ms - reference
        if excess > margin * reference and excess > MAX_Z * noise:
            slow[metric] = _Slowness(timing.ms, reference)
    return slow
