"""Addresses, worlds and records, as people read them."""

from __future__ import annotations

import signal

import pytest
from driving import failure, world

from holdfast.core.ids import Address, Outcome
from holdfast.core.story import (
    JobFinished,
    MasterRestored,
    NodeJoined,
    NodeLost,
    NodeRefused,
    Resizing,
    Stopping,
    Waiting,
    WorkerFailed,
    WorkersStarted,
    WorldFormed,
)


def test_an_address_is_written_as_it_is_dialled():
    assert str(Address("node", 1)) == "node:1"
    assert str(Address("fe80::1", 1)) == "[fe80::1]:1"


def test_a_world_knows_its_size_and_its_nodes():
    it = world(1, nodes=("a", "b", "c"), num_workers=4)
    assert it.size == 12
    assert it.placement_of("b") == it.placements[1]
    assert it.placement_of("z") is None


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (NodeJoined("a", "host", 1, 2), "node a joined with 2 workers"),
        (NodeRefused("a", "no"), "node a refused: no"),
        (NodeLost("a", "gone"), "node a lost: gone"),
        (Waiting("for it"), "waiting: for it"),
        (WorldFormed(2, 1, 4, world(2).placements, "why"), "generation 2: 4 workers on 2 nodes"),
        (WorldFormed(1, 0, 2, world(1, nodes="a").placements, "why"), "generation 1: 2 workers on 1 node"),
        (WorkersStarted(1, "a", {0: 7}, None), "rank 0 started on a"),
        (WorkersStarted(2, "a", {1: 8, 0: 7}, 12.4), "ranks 0-1 started again on a, 12 ms after the failure was seen"),
        (
            WorkerFailed(1, failure(0, code=None, signal=signal.SIGKILL)),
            "rank 0 (pid 100 on a) killed by SIGKILL",
        ),
        (Stopping(1, "restart", "why", 1, 3), "restarting all workers (restart 1 of 3)"),
        (Stopping(1, "await", "why", 1, 100), "all workers have to be started again: why"),
        (Stopping(1, "finish", "why", 3, 3), "ending the job: why"),
        (Resizing(1, "b joined"), "restarting all workers with another world: b joined"),
        (MasterRestored(3), "master restored from its journal at generation 3"),
        (JobFinished(Outcome(3, "why"), 1), "job ended with exit code 3: why"),
    ],
)
def test_every_record_reads_as_a_sentence(record, text):
    assert str(record) == text
    assert record.level in ("info", "warning", "error")
