"""Verdicts: evidence that is doctored is found out, by both who judge it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from recompute import is_met, is_soaked

from holdfast.chaos.evidence import Evidence
from holdfast.chaos.expectations import EXPECTATIONS, judge
from holdfast.chaos.experiment import Expectation
from holdfast.chaos.soak import judge_faults, measure_goodput

Raw = dict[str, Any]
AT = "2026-11-16T10:00:00+00:00"


def event(kind: str, **fields: object) -> Raw:
    return {"kind": kind, "at": AT, "text": kind, **fields}


def step(number: int, at: float, *, world: int = 2, rank: int = 0) -> Raw:
    samples = [2 * (number % 2) + rank]
    told = {"step": number, "epoch": number // 2, "loss": 1.0, "step_ms": 1.0, "samples": samples}
    return {"what": "step", "at": at, "rank": rank, "world": world, **told}


def good() -> Evidence:
    """A node is lost between steps 1 and 2, and replaced by one with more memory."""
    evidence = Evidence(exit_code=0, reference={"0": "a", "1": "b", "2": "c", "3": "d"})
    evidence.events = [
        event("node_created", node="node-0", rank=0, replaces=None, memory_bytes=1 << 20),
        event("world_formed", generation=1, placements=[]),
        event("workers_started", node="node-0", pids={"0": 1}),
        event("node_gone", node="node-0", rank=0, cause="killed"),
        event("incident_opened", number=1, generation=2, strategy="recover"),
        event("node_created", node="node-1", rank=0, replaces="node-0", memory_bytes=2 << 20),
        event("workers_started", node="node-1", pids={"0": 2}),
        event("incident_closed", number=1, verdict="repaired"),
        event("job_finished", restarts=0),
    ]
    evidence.actions = [
        {"at": 11.5, "what": "fault", "text": "kill node-0"},
        {"at": 20.0, "what": "end", "text": "end"},
    ]
    for number, at in enumerate((10.0, 11.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0)):
        evidence.records += [step(number, at, rank=rank) for rank in (0, 1)]
        if number % 2:
            uses = {str(number // 2 + 1): 4}
            weights = "abcd"[number // 2]
            evidence.records.append({"what": "epoch", "at": at, "epoch": number // 2, "weights": weights, "uses": uses})
    evidence.records.append({"what": "end", "at": 20.5})
    return evidence


MET: dict[str, Any] = {
    "exit_code": 0,
    "node_replaced": {"node": "node-0", "cause": "killed"},
    "nodes_kept": "all",
    "world_sizes": [2],
    "recovers_within": 4.5,
    "incident": {"strategy": "recover", "verdict": "repaired"},
    "told": {"kind": "node_gone", "node": "node-0"},
    "not_told": {"kind": "straggler_found"},
    "samples": "once",
    "weights": "equal",
    "generations": "grow",
    "orphans": "none",
    "memory": "grows",
    "restarts": 0,
}


def forget(kind: str) -> Callable[[Evidence], None]:
    def change(evidence: Evidence) -> None:
        evidence.events = [each for each in evidence.events if each["kind"] != kind]

    return change


def alter(kind: str, **fields: object) -> Callable[[Evidence], None]:
    """Change the last event or record of a kind."""

    def change(evidence: Evidence) -> None:
        rows = [*evidence.events, *evidence.records]
        [each for each in rows if kind in (each.get("kind"), each.get("what"))][-1].update(fields)

    return change


def lose(what: str) -> Callable[[Evidence], None]:
    def change(evidence: Evidence) -> None:
        evidence.records = [each for each in evidence.records if each["what"] != what]

    return change


def leave_orphan(evidence: Evidence) -> None:
    evidence.leftovers = ["1 sleep"]


def fail(evidence: Evidence) -> None:
    evidence.exit_code = 1


def fall_silent(evidence: Evidence) -> None:
    evidence.records = [each for each in evidence.records if each["at"] < 12]


def finish_what_was_under_way(evidence: Evidence) -> None:
    evidence.records = [each for each in evidence.records if each["at"] < 18.5 or each["what"] == "end"]


def find_straggler(evidence: Evidence) -> None:
    evidence.events.append(event("straggler_found"))


CALM: dict[str, Callable[[Evidence], None]] = {"nodes_kept": alter("node_gone", cause="")}
"""What is otherwise in the evidence where a word is met: this node only went because it was done."""

LIES: list[tuple[str, Callable[[Evidence], None]]] = [
    ("exit_code", fail),
    ("node_replaced", forget("node_gone")),
    ("node_replaced", alter("node_gone", cause="software")),
    ("node_replaced", alter("node_created", rank=1)),
    ("node_replaced", alter("node_created", replaces=None)),
    ("node_replaced", alter("workers_started", pids={"1": 2})),
    ("nodes_kept", alter("node_gone", cause="killed")),
    ("world_sizes", alter("step", world=1)),
    ("recovers_within", fall_silent),
    ("recovers_within", finish_what_was_under_way),
    ("recovers_within", lose("end")),
    ("recovers_within", alter("step", at=30.0)),
    ("incident", forget("incident_closed")),
    ("incident", alter("incident_closed", verdict="failed")),
    ("incident", alter("incident_opened", strategy="exit")),
    ("told", forget("node_gone")),
    ("not_told", find_straggler),
    ("samples", alter("epoch", uses={"4": 3, "1": 1})),
    ("samples", alter("step", samples=[0])),
    ("samples", lose("end")),
    ("weights", alter("epoch", weights="x")),
    ("weights", lose("epoch")),
    ("generations", alter("incident_opened", generation=1)),
    ("orphans", leave_orphan),
    ("memory", alter("node_created", memory_bytes=1 << 20)),
    ("restarts", alter("job_finished", restarts=1)),
    ("restarts", forget("job_finished")),
]


def seen(name: str) -> Evidence:
    evidence = good()
    CALM.get(name, lambda _: None)(evidence)
    return evidence


def both(name: str, evidence: Evidence) -> tuple[bool, bool]:
    raw = {field: getattr(evidence, field) for field in Evidence.__slots__}
    return judge(Expectation(name, MET[name]), evidence).met, is_met(name, MET[name], copy.deepcopy(raw))


@pytest.mark.parametrize("name", MET)
def test_what_was_seen_is_believed(name: str) -> None:
    assert both(name, seen(name)) == (True, True)


@pytest.mark.parametrize(("name", "change"), LIES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(LIES)])
def test_what_was_not_seen_is_not_believed(name: str, change: Callable[[Evidence], None]) -> None:
    evidence = seen(name)
    change(evidence)
    assert both(name, evidence) == (False, False)


def test_every_word_is_tried() -> None:
    assert {name for name, _ in LIES} == set(MET) == set(EXPECTATIONS)


@pytest.mark.parametrize(
    ("deeds", "enough"),
    [
        (["fault"] * 4 + ["skipped", "end"], True),
        (["fault"] * 4 + ["skipped", "failed", "end"], False),
        (["fault"] * 4, False),
        (["end"], False),
    ],
)
def test_a_soak_in_which_few_faults_were_put_in_proves_nothing(deeds: list[str], enough: bool) -> None:
    evidence = Evidence(actions=[{"at": 0.0, "what": what, "text": ""} for what in deeds])
    assert (judge_faults(evidence).met, is_soaked({"actions": evidence.actions})) == (enough, enough)


def test_goodput_counts_what_was_held_up_as_one_step() -> None:
    evidence = Evidence(records=[step(number, at) for number, at in enumerate((0.0, 1.0, 2.0, 7.0, 8.0))])
    assert measure_goodput(evidence) == pytest.approx(4 / 8)
