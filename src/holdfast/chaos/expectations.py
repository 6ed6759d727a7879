"""The words in which an experiment says how a job must come out: what each takes, and how it is found true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from holdfast.chaos.evidence import Evidence, Row
from holdfast.chaos.experiment import Expectation, render
from holdfast.chaos.reading import Reader
from holdfast.spec.yaml_tree import Tree


@dataclass(frozen=True, slots=True)
class Finding:
    expected: str
    observed: str
    met: bool


RECOVERED_STEPS = 5
"""Fewer may still have been under way when the fault came."""

Judge = Callable[[Evidence, Any], tuple[bool, str]]


@dataclass(frozen=True, slots=True)
class Word:
    means: str
    kind: Callable[[Reader, Tree, str], Any]
    judge: Judge


def judge(expectation: Expectation, evidence: Evidence) -> Finding:
    met, observed = EXPECTATIONS[expectation.name].judge(evidence, expectation.value)
    return Finding(str(expectation), observed, met)


# --- what a word takes ----------------------------------------------------------------------------------------


def _whole(read: Reader, tree: Tree, shown: str) -> int:
    return read.as_whole(tree, shown)


def _number(read: Reader, tree: Tree, shown: str) -> float:
    return read.as_number(tree, shown)


def _wholes(read: Reader, tree: Tree, shown: str) -> list[int]:
    return [read.as_whole(item, shown) for item in read.as_items(tree, shown)]


def _just(word: str) -> Callable[[Reader, Tree, str], str]:
    return lambda read, tree, shown: read.as_choice(tree, shown, (word,))


def _fields(*valid: str, needed: tuple[str, ...] = ()) -> Callable[[Reader, Tree, str], dict[str, str]]:
    def read_fields(read: Reader, tree: Tree, shown: str) -> dict[str, str]:
        fields = read.as_mapping(tree, shown)
        if valid:
            read.refuse_others(fields, shown, valid)
        for name in needed:
            read.text(fields, name, within=shown)
        return read.texts(fields, shown)

    return read_fields


# --- how it is found true -------------------------------------------------------------------------------------


def _exit_code(evidence: Evidence, wanted: int) -> tuple[bool, str]:
    return evidence.exit_code == wanted, str(evidence.exit_code)


def _node_replaced(evidence: Evidence, wanted: dict[str, str]) -> tuple[bool, str]:
    gone = next(iter(evidence.told(kind="node_gone", node=wanted["node"])), None)
    if gone is None:
        return False, f"{wanted['node']} is not gone"
    ending = f"{gone['node']} gone ({gone['cause']})"
    if wanted.get("cause", gone["cause"]) != gone["cause"]:
        return False, ending
    created = next(iter(evidence.told(kind="node_created", replaces=wanted["node"])), None)
    if created is None:
        return False, f"{ending}, not replaced"
    before, after = _ranks_on(evidence, gone["node"]), _ranks_on(evidence, created["node"])
    observed = f"{ending}, {created['node']} has rank {render(after) or 'none'}"
    return bool(after) and before in ([], after) and created["rank"] == gone["rank"], observed


def _ranks_on(evidence: Evidence, node: str) -> list[int]:
    """The ranks of workers that were started on a node."""
    return sorted({int(rank) for event in evidence.told(kind="workers_started", node=node) for rank in event["pids"]})


def _nodes_kept(evidence: Evidence, _wanted: str) -> tuple[bool, str]:
    lost = [event["node"] for event in evidence.told(kind="node_gone") if event["cause"]]
    return not lost, f"lost: {', '.join(lost)}" if lost else "all"


def _world_sizes(evidence: Evidence, wanted: list[int]) -> tuple[bool, str]:
    sizes = [record["world"] for record in sorted(evidence.of("step"), key=lambda record: record["step"])]
    changes = [size for at, size in enumerate(sizes) if at == 0 or size != sizes[at - 1]]
    return changes == wanted, render(changes) or "no step"


def _recovers_within(evidence: Evidence, limit_s: float) -> tuple[bool, str]:
    last_at = max(evidence.struck_at, default=0.0)
    num_steps = len({record["step"] for record in evidence.of("step") if record["at"] > last_at})
    if num_steps < RECOVERED_STEPS:
        return False, f"{num_steps} steps after it"
    if not evidence.of("end"):
        return False, "the training did not end"
    pause_s, _ = evidence.longest_pause()
    return pause_s <= limit_s, f"longest pause {pause_s:.1f} s"


def _incident(evidence: Evidence, wanted: dict[str, str]) -> tuple[bool, str]:
    closed = {event["number"]: event for event in evidence.told(kind="incident_closed")}
    shown = []
    for opened in evidence.told(kind="incident_opened"):
        verdict = closed.get(opened["number"], {}).get("verdict", "open")
        found = {"strategy": opened["strategy"], "verdict": verdict}
        if all(found[name] == value for name, value in wanted.items()):
            return True, render(found)
        shown.append(render(found))
    return False, "; ".join(shown) or "none"


def _told(evidence: Evidence, wanted: dict[str, str]) -> tuple[bool, str]:
    found = evidence.told(**wanted)
    return bool(found), _brief(found[0]) if found else "not told"


def _not_told(evidence: Evidence, wanted: dict[str, str]) -> tuple[bool, str]:
    found = evidence.told(**wanted)
    return not found, _brief(found[0]) if found else "not told"


def _brief(event: Row) -> str:
    text = " ".join(event["text"].split())
    return text if len(text) <= 100 else text[:97] + "..."


def _samples(evidence: Evidence, _wanted: str) -> tuple[bool, str]:
    epochs = evidence.of("epoch")
    if not epochs or not evidence.of("end"):
        return False, "the training did not end"
    for record in epochs:
        if set(record["uses"]) != {str(record["epoch"] + 1)}:
            return False, f"uses after epoch {record['epoch']}: {render(record['uses'])}"
    steps: dict[tuple[int, int], set[int]] = defaultdict(set)
    for record in evidence.of("step"):
        for sample in record["samples"]:
            steps[record["epoch"], sample].add(record["step"])
    if twice := [place for place, found in steps.items() if len(found) > 1]:
        return False, f"sample {twice[0][1]} in several steps of epoch {twice[0][0]}"
    number = sum(epochs[-1]["uses"].values())
    return True, f"{number} samples, each {epochs[-1]['epoch'] + 1} times in {epochs[-1]['epoch'] + 1} epochs"


def _weights(evidence: Evidence, _wanted: str) -> tuple[bool, str]:
    epochs = evidence.of("epoch")
    if not epochs or not evidence.of("end"):
        return False, "the training did not end"
    for record in epochs:
        if (undisturbed := evidence.reference.get(str(record["epoch"]))) != record["weights"]:
            return False, f"{record['weights']} after epoch {record['epoch']}, undisturbed {undisturbed}"
    return True, f"{epochs[-1]['weights']} after {epochs[-1]['epoch'] + 1} epochs, undisturbed the same"


def _generations(evidence: Evidence, _wanted: str) -> tuple[bool, str]:
    found = [event["generation"] for event in evidence.events if event["kind"] in ("world_formed", "incident_opened")]
    return bool(found) and all(a < b for a, b in pairwise(found)), render(found) or "none"


def _orphans(evidence: Evidence, _wanted: str) -> tuple[bool, str]:
    return not evidence.leftovers, "; ".join(evidence.leftovers) or "none"


def _memory(evidence: Evidence, _wanted: str) -> tuple[bool, str]:
    created = {event["node"]: event for event in evidence.told(kind="node_created")}
    found = [
        (created[event["replaces"]]["memory_bytes"], event["memory_bytes"])
        for event in created.values()
        if event["replaces"] in created
    ]
    observed = "; ".join(f"{before >> 20} MiB, then {after >> 20} MiB" for before, after in found)
    return bool(found) and all(after > before for before, after in found), observed or "no node was replaced"


def _restarts(evidence: Evidence, most: int) -> tuple[bool, str]:
    found = [event["restarts"] for event in evidence.told(kind="job_finished")]
    return bool(found) and found[-1] <= most, render(found) or "the job did not finish"


EXPECTATIONS: dict[str, Word] = {
    "exit_code": Word("The job ends with this exit code.", _whole, _exit_code),
    "node_replaced": Word(
        "The node is gone, for this cause, and another one has its rank in the world.",
        _fields("node", "cause", needed=("node",)),
        _node_replaced,
    ),
    "nodes_kept": Word("`all`: no node is lost.", _just("all"), _nodes_kept),
    "world_sizes": Word("Steps are made by so many workers, one number after the other.", _wholes, _world_sizes),
    "recovers_within": Word(
        "The training goes on after the last fault, to its end, and never pauses longer than so many seconds.",
        _number,
        _recovers_within,
    ),
    "incident": Word("There is an incident with this strategy and verdict.", _fields("strategy", "verdict"), _incident),
    "told": Word("There is an event of this kind with these fields.", _fields(needed=("kind",)), _told),
    "not_told": Word("There is no such event.", _fields(needed=("kind",)), _not_told),
    "samples": Word("`once`: every sample is used exactly once in each epoch.", _just("once"), _samples),
    "weights": Word(
        "`equal`: at the end of each epoch they are those of an undisturbed run, bit for bit.", _just("equal"), _weights
    ),
    "generations": Word("`grow`: each world has a higher number than the one before.", _just("grow"), _generations),
    "orphans": Word("`none`: no process outlives the job.", _just("none"), _orphans),
    "memory": Word("`grows`: a replaced node has more memory than the one before.", _just("grows"), _memory),
    "restarts": Word("At most so many restarts of all workers.", _whole, _restarts),
}
