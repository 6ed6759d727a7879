"""The real cores in a made-up cluster: faults, then calm, then an end with a reason; and every rare path taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from holdfast.sim.cluster import Result, simulate
from holdfast.sim.setup import MAX_NODES, MIN_NODES

SEEDS = range(150)

RARE = (
    "agent fenced itself",
    "agent gave up on the master",
    "agent refused for good",
    "end requested while stopping",
    "grown",
    "job failed",
    "job succeeded",
    "launch failed",
    "master died between deciding and telling",
    "master restored",
    "master revived by its host",
    "name refused while its holder may live",
    "no world in time",
    "node left",
    "node lost: did not stop",
    "node lost: is dead",
    "node lost: silent",
    "registered again after being given up",
    "restart budget spent",
    "root cause named",
    "run refused by a node that is stopping or cut off",
    "shrunk by a leaving node",
    "signal SIGHUP",
    "signal SIGINT",
    "signal SIGTERM",
    "stale run refused",
    "status doubled or overtaken",
    "stopped before it ran",
    "workers outlived their grace",
)


@cache
def result_of(seed: int) -> Result:
    return simulate(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_job_ends_and_nothing_that_must_hold_is_broken(seed):
    result = result_of(seed)
    assert MIN_NODES <= result.setup.num_nodes <= MAX_NODES
    assert result.lines[-1].partition("over after")[1]


def test_every_rare_path_was_taken():
    reached = sum((result_of(seed).reached for seed in SEEDS), Counter[str]())
    assert {path: reached[path] for path in RARE if reached[path] == 0} == {}
    assert reached["world formed"] > 2 * len(SEEDS)


def test_no_path_is_counted_that_nobody_asked_for():
    reached = sum((result_of(seed).reached for seed in SEEDS), Counter[str]())
    assert set(reached) - set(RARE) == {"world formed"}


@pytest.mark.parametrize("seed", [3, 14, 159])
def test_the_same_seed_gives_the_same_trace(seed):
    assert simulate(seed).lines == result_of(seed).lines


def test_the_trace_depends_on_no_hash_order():
    traces = [
        subprocess.run(
            [sys.executable, "-m", "holdfast.sim", "5", "6"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert traces[0].decode().splitlines() == [*result_of(5).lines, *result_of(6).lines]
