"""Samples to figures: medians, a bootstrap interval, a table for people, JSON for machines."""

import os
import platform
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from experiments import Overhead, Pair, Restart, Turns

RESAMPLES = 5_000
ROLES = "baseline", "candidate"


@dataclass
class Results:
    """What was measured; an experiment that was left out has no samples."""

    pair: Pair
    settings: dict[str, Any]
    restarts: list[Restart] = field(default_factory=list)
    steady: list[Turns] = field(default_factory=list)
    overhead: list[Overhead] = field(default_factory=list)


def ratio_interval(samples: list[Turns], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the median ratio, by resampling sessions and the pairs in them.

    Pairs of one session share their processes, so they alone would claim too narrow an interval.
    """
    generator = random.Random(seed)
    sessions = [
        [turns.ratio for turns in samples if turns.session == session]
        for session in sorted({turns.session for turns in samples})
    ]

    def resample() -> float:
        chosen = generator.choices(sessions, k=len(sessions))
        return median(x for ratios in chosen for x in generator.choices(ratios, k=len(ratios)))

    medians = sorted(resample() for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def spread(samples: Sequence[float], *, digits: int) -> str:
    """`median [min-max] n=`, or a dash."""
    if not samples:
        return "-"
    low, high = min(samples), max(samples)
    middle = f"{median(samples):.{digits}f}"
    return f"{middle} [{low:.{digits}f}-{high:.{digits}f}] n={len(samples)}"


def table(results: Results) -> str:
    rows = [["", results.pair.baseline.name, results.pair.candidate.name]]
    rows += restart_rows(results.restarts) if results.restarts else []
    rows += overhead_rows(results.overhead) if results.overhead else []
    rows += steady_rows(results.steady) if results.steady else []
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if results.steady:
        lines += ["", ratio_line(results.pair, results.steady, block=results.settings["block"])]
    lines += [f"{row.role}: {row.failure}" for row in results.restarts if row.failure]
    return "\n".join(lines)


def restart_rows(samples: list[Restart]) -> list[list[str]]:
    cold, new, recovered = [], [], []
    for role in ROLES:
        mine = [sample for sample in samples if sample.role == role]
        times = [sample.new_step_s for sample in mine if sample.new_step_s is not None]
        cold.append(spread([sample.cold_start_s for sample in mine], digits=2))
        new.append(spread(times, digits=2))
        recovered.append(f"{len(times)} of {len(mine)}")
    return [
        ["launch to first step on all ranks, s", *cold],
        ["SIGKILL to first new step on all ranks, s", *new],
        ["recovered from the SIGKILL", *recovered],
    ]


def overhead_rows(samples: list[Overhead]) -> list[list[str]]:
    memory, sleeping, training = [], [], []
    for role in ROLES:
        mine = [sample for sample in samples if sample.role == role]
        memory.append(spread([sample.pss_bytes / 1e6 for sample in mine], digits=0))
        sleeping.append(spread([sample.sleeping_cpu_percent for sample in mine], digits=2))
        training.append(spread([sample.training_cpu_percent for sample in mine], digits=2))
    return [
        ["memory of the whole job (PSS), MB", *memory],
        ["launcher CPU, workers asleep, % of a core", *sleeping],
        ["launcher CPU, workers training, % of a core", *training],
    ]


def steady_rows(samples: list[Turns]) -> list[list[str]]:
    baseline = spread([sample.baseline_step_s * 1000 for sample in samples], digits=2)
    candidate = spread([sample.candidate_step_s * 1000 for sample in samples], digits=2)
    return [["step, both jobs in turns, ms", baseline, candidate]]


def ratio_line(pair: Pair, samples: list[Turns], *, block: int) -> str:
    ratios = [turns.ratio for turns in samples]
    low, high = ratio_interval(samples)
    return (
        f"step time {pair.candidate.name} / {pair.baseline.name}: "
        f"{median(ratios):.4f}, 95 % interval {low:.4f}-{high:.4f} "
        f"({len(ratios)} pairs of {block} steps each)"
    )


def document(results: Results) -> dict[str, Any]:
    """Everything needed to check the table or to draw another one."""
    return {
        **circumstances(),
        "settings": results.settings,
        "launchers": {
            "baseline": results.pair.baseline.command,
            "candidate": results.pair.candidate.command,
        },
        "restart": [asdict(sample) for sample in results.restarts],
        "overhead": [asdict(sample) for sample in results.overhead],
        **steady_document(results.steady),
    }


def circumstances() -> dict[str, Any]:
    """When, where and how this was measured."""
    return {
        "command_line": sys.argv,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }


def steady_document(samples: list[Turns]) -> dict[str, Any]:
    ratios = [turns.ratio for turns in samples]
    return {
        "steady": [asdict(turns) | {"ratio": turns.ratio} for turns in samples],
        "step_ratio": ratios and {"median": median(ratios), "interval_95": ratio_interval(samples)},
    }


def machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.machine(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_average_at_end": os.getloadavg(),
    }
