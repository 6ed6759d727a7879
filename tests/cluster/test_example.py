"""The example of disaster recovery does what its README says."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainings import NUM_WORKERS, StartExample

pytestmark = pytest.mark.timeout(400)


def test_a_lost_worker_and_a_lost_scheduler_are_pulled_up_again(
    example: StartExample, undisturbed: str, tmp_path: Path
) -> None:
    training, call = example(tmp_path)
    call("run.sh", "--save-every", "50")
    training.wait_for("step: 20,", name="worker_0")
    training.kill("MS_WORKER", 3)
    training.wait_for("node 3 lost", name="worker_0")
    training.kill("MS_SCHED")
    call("recover.sh")
    call("recover.sh", "3", "--save-every", "50")
    training.wait_for_end()
    assert {training.weights(worker) for worker in range(NUM_WORKERS)} == {undisturbed}
    assert [len(training.places(worker)) for worker in range(NUM_WORKERS)] == [1, 1, 1, 2, 1, 1, 1, 1]
    for rank in range(NUM_WORKERS):
        saved = sorted(path.name for path in (tmp_path / "ckpt_of_rank" / str(rank) / f"rank_{rank}").glob("step_*"))
        assert saved == [f"step_{step:08}" for step in (50, 100, 150, 200)]
