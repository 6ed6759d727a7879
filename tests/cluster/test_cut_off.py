"""A machine that is cut off sends no farewell: its silence tells."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clusters import SCRIPT, SLACK_S, SOURCES, START_S, end_of
from jobs import PYTHON, Job, until
from machines import ADDRESSES, Machine, MakeMachines

pytestmark = pytest.mark.timeout(400)

NODE_TIMEOUT_S = 6
END_S = 60.0
"""From a cut to the end of what it ends, the timeout included, on a machine that may be busy."""


class Pair:
    """A scheduler and worker 0 on one machine, worker 1 on another that has the same name."""

    def __init__(self, machines: list[Machine], directory: Path, **variables: object) -> None:
        directory.mkdir()
        self.directory = directory
        self.here, self.there = machines
        for machine in machines:
            assert machine.start(["hostname", "same"]).wait() == 0
        self._variables = {
            "MS_SCHED_HOST": ADDRESSES[0],
            "MS_SCHED_PORT": "8118",
            "MS_WORKER_NUM": "2",
            "MS_NODE_TIMEOUT": str(NODE_TIMEOUT_S),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": SOURCES,
        } | {name: str(value) for name, value in variables.items()}
        self.scheduler = self.start(self.here, "MS_SCHED", "sched")
        self.workers = [self.start(self.here, "MS_WORKER", 0), self.start(self.there, "MS_WORKER", 1)]
        held = lambda: len(list(directory.glob("held-*"))) == 2  # noqa: E731
        until(held, within_s=START_S, what="both are held", tell=self.workers[0].story)

    def start(self, machine: Machine, role: str, node_id: object) -> Job:
        env = self._variables | {"MS_ROLE": role, "MS_NODE_ID": str(node_id)}
        return machine.start([PYTHON, "-u", str(SCRIPT), str(self.directory)], env=env)

    def expect_another_step(self) -> None:
        """Both save every tenth step; the next of them has to come."""
        saved = {path.name for path in self.directory.glob("saved/rank_1/step_*")}
        another = lambda: {path.name for path in self.directory.glob("saved/rank_1/step_*")} - saved  # noqa: E731
        until(another, within_s=END_S, what="another checkpoint", tell=self.workers[1].story)

    def expect_good_end(self, weights: str) -> None:
        (self.directory / "go").touch()
        assert [worker.wait(within_s=START_S) for worker in self.workers] == [0, 0], self.workers[0].story()
        assert self.scheduler.wait(within_s=END_S) == 0, self.scheduler.story()
        assert [end_of(worker)[:2] for worker in self.workers] == [(0, 0), (1, 0)], "their names are equal"
        assert {end_of(worker)[4] for worker in self.workers} == {weights}


StartPair = Callable[..., Pair]


@pytest.fixture
def pair(machines: MakeMachines, tmp_path: Path) -> StartPair:
    return lambda **variables: Pair(machines(2), tmp_path / "marks", **variables)


def test_without_recovery_the_cluster_ends_in_time_and_names_it(pair: StartPair) -> None:
    it = pair()
    cut_at = datetime.now(UTC)
    it.there.cut_off()
    for process in (it.scheduler, *it.workers):
        assert process.wait(within_s=END_S) != 0, process.story()
    assert (datetime.now(UTC) - cut_at).total_seconds() <= NODE_TIMEOUT_S + 2 * NODE_TIMEOUT_S / 3 + SLACK_S, (
        "two heartbeats more"
    )
    for process in (it.scheduler, it.workers[0]):
        assert "node 1 is lost: silent for 6 s" in process.err
    assert "cut off from the master for 5.4 s" in it.workers[1].err


def test_with_recovery_a_short_cut_is_no_loss_and_after_a_long_one_it_is_started_again(
    pair: StartPair, weights_of_two: str, tmp_path: Path
) -> None:
    it = pair(MS_ENABLE_RECOVERY=1, MS_RECOVERY_PATH=tmp_path / "state")
    it.there.cut_off()
    it.there.heal()
    it.expect_another_step()
    assert "lost" not in it.workers[0].err
    it.there.cut_off()
    it.workers[0].wait_for_output("node 1 lost", within_s=END_S)
    assert it.workers[1].wait(within_s=END_S) != 0, "who cannot be heard must not train on"
    it.there.heal()
    it.workers[1] = it.start(it.there, "MS_WORKER", 1)
    it.expect_good_end(weights_of_two)
    assert end_of(it.workers[0])[3] == it.workers[0].pid
    assert "resumed at step" not in it.workers[0].err, "it has the state"
