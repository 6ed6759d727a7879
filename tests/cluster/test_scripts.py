"""The shell scripts that MindSpore's manual gives for its dynamic cluster start ours as they are, and so do our own.

Of theirs only the program is another, the data is there already, and the address of the first machine is filled in.
Ours are those of the example.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import ADDRESSES, Machine, MakeMachines, obstacle
from trainings import ENVIRONMENT, NUM_WORKERS, StartExample, Training, prepare

pytestmark = pytest.mark.timeout(400)

needs_machines = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


def call(machine: Machine, training: Training, script: str) -> None:
    training.jobs.append(machine.start(["bash", script], env=ENVIRONMENT, cwd=training.directory))


@needs_machines
def test_on_one_machine(on_one_machine: Training) -> None:
    for worker in range(NUM_WORKERS):
        assert [place[:3] for place in on_one_machine.places(worker)] == [(worker, NUM_WORKERS, worker)]
        assert "epoch: 0, step: 0, loss is 2." in on_one_machine.log(f"worker_{worker}")
        assert on_one_machine.weights(worker) == on_one_machine.weights(0)


def test_on_two_machines(machines: MakeMachines, digits: Path, undisturbed: str) -> None:
    pair = machines(2)
    trainings = [Training(machine.directory) for machine in pair]
    for number, (machine, training) in enumerate(zip(pair, trainings, strict=True), start=1):
        prepare(training.directory, digits, node_1__ip__address=ADDRESSES[0])
        call(machine, training, f"run_dynamic_cluster_{number}.sh")
    for training, workers in zip(trainings, (range(4), range(4, 8)), strict=True):
        training.wait_for_end(workers)
        for worker in workers:
            assert [place[:3] for place in training.places(worker)] == [(worker, NUM_WORKERS, worker % 4)]
            assert training.weights(worker) == undisturbed


def test_a_lost_worker_and_a_lost_scheduler_are_pulled_up_again(
    machines: MakeMachines, digits: Path, undisturbed: str
) -> None:
    [machine] = machines(1)
    training = Training(machine.directory)
    prepare(training.directory, digits)
    call(machine, training, "run.sh")
    training.wait_for("step: 20,", name="worker_0")
    training.kill("MS_WORKER", 3)
    training.wait_for("node 3 lost", name="worker_0")
    training.kill("MS_SCHED")
    call(machine, training, "recover.sh")
    pull_up = (training.directory / "recover.sh").read_text()
    for scheduler, worker in (("MS_SCHED  ", "MS_WORKER"), ("=sched ", "=3 "), ("scheduler.log", "worker_3.log")):
        assert scheduler in pull_up
        pull_up = pull_up.replace(scheduler, worker)
    pull_up = pull_up.replace("${EXEC_PATH}", str(training.directory))
    (training.directory / "recover_worker.sh").write_text(pull_up)
    call(machine, training, "recover_worker.sh")
    training.wait_for_end()
    assert {training.weights(worker) for worker in range(NUM_WORKERS)} == {undisturbed}
    assert [len(training.places(worker)) for worker in range(NUM_WORKERS)] == [1] * NUM_WORKERS


def test_the_example_pulls_up_a_lost_worker_and_a_lost_scheduler(
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
