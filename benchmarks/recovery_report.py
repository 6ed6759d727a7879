"""Disturbed jobs to figures: one column per system, one row per question."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import nodes
from disturbances import DAMAGE, KILLS, STOPS, Clean, Fault, Plan, Sample, System
from experiments import Pair, Turns
from report import circumstances, ratio_line, spread, steady_document


@dataclass
class Results:
    """What was measured; an experiment that was left out has no samples."""

    systems: list[System]
    pair: Pair
    plan: Plan
    settings: dict[str, Any]
    peers: list[System] = field(default_factory=list)
    not_available: dict[str, str] = field(default_factory=dict)
    """Peers that were asked for and cannot be measured here: name to reason."""
    clean: list[Clean] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    steady: list[Turns] = field(default_factory=list)
    of_nodes: nodes.Samples = field(default_factory=dict)

    @property
    def columns(self) -> list[System]:
        return [*self.systems, *self.peers]

    def of(self, system: System, faults: Sequence[Fault]) -> list[Sample]:
        names = {fault.name for fault in faults}
        return [s for s in self.samples if s.system == system.name and s.fault in names]


def table(results: Results) -> str:
    lines = []
    if results.samples:
        rows = [["", *(system.name for system in results.columns)], *time_rows(results), *correctness_rows(results)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows] + [""]
    if results.steady:
        baseline = spread([turns.baseline_step_s * 1000 for turns in results.steady], digits=2)
        candidate = spread([turns.candidate_step_s * 1000 for turns in results.steady], digits=2)
        lines += [f"step, both jobs in turns, ms: torchrun {baseline}, holdfast SDK {candidate}"]
        lines += [ratio_line(results.pair, results.steady, block=results.settings["block"])]
    if results.of_nodes:
        lines += [nodes.table(results.of_nodes)]
    lines += [f"{s.system}, {s.fault}: the job {s.failure}" for s in results.samples if s.failure]
    lines += [f"{name}: not available: {reason}" for name, reason in results.not_available.items()]
    return "\n".join(lines)


def time_rows(results: Results) -> list[list[str]]:
    return [
        *(
            row(results, f"{fault.name} to first new step on all ranks, s", [fault], seconds)
            for fault in [*KILLS, *STOPS]
        ),
        *(
            row(results, f"{fault.name} to first new step on the other ranks, s", [fault], seconds_of_others)
            for fault in [*KILLS, *STOPS]
            if results.peers
        ),
        *(
            row(results, f"{fault.name}, after the hang deadline, s", [fault], seconds_after_deadline)
            for fault in STOPS
        ),
        row(results, f"{DAMAGE.name}: over an ordinary step, ms", [DAMAGE], milliseconds),
    ]


def correctness_rows(results: Results) -> list[list[str]]:
    faults = [*KILLS, *STOPS, DAMAGE]

    def most(values: list[int]) -> str:
        return str(max(values)) if values else "-"

    return [
        row(results, "recovered", faults, lambda s: f"{len([x for x in s if x.failure is None])} of {len(s)}"),
        row(results, "committed steps run again, at most", faults, lambda s: most(known(s, "steps_run_again"))),
        row(results, "samples lost, at most", faults, lambda s: most(known(s, "samples_lost"))),
        row(
            results,
            "same weights as the undisturbed run",
            faults,
            lambda s: f"{sum(known(s, 'same_weights'))} of {len(s)}",
        ),
    ]


def row(results: Results, title: str, faults: Sequence[Fault], show: Callable[[list[Sample]], str]) -> list[str]:
    cells = []
    for system in results.columns:
        samples = results.of(system, faults)
        cells.append(show(samples) if samples else "-")
    return [title, *cells]


def known(samples: Sequence[Sample], name: str) -> list[Any]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def seconds(samples: list[Sample]) -> str:
    return spread(known(samples, "new_step_s"), digits=3)


def seconds_of_others(samples: list[Sample]) -> str:
    return spread(known(samples, "others_new_step_s"), digits=3)


def milliseconds(samples: list[Sample]) -> str:
    return spread([1000 * s for s in known(samples, "new_step_s")], digits=0)


def seconds_after_deadline(samples: list[Sample]) -> str:
    times = [s.new_step_s - s.hang_deadline_s for s in samples if s.new_step_s and s.hang_deadline_s]
    return spread(times, digits=3)


def document(results: Results) -> dict[str, Any]:
    """Everything needed to check the table or to draw another one."""
    return {
        **circumstances(),
        "settings": results.settings,
        "plan": asdict(results.plan),
        "systems": {system.name: [*system.launcher.command, *system.launcher.flags] for system in results.columns},
        "not_available": results.not_available,
        "undisturbed": [asdict(clean) for clean in results.clean],
        "disturbed": [asdict(sample) for sample in results.samples],
        **steady_document(results.steady),
        "nodes": nodes.document(results.of_nodes),
    }
