"""Clusters whose processes are all gone when the test is."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import START_S, Cluster, StartCluster, end_of
from jobs import PYTHON, clean_env, free_port, start
from machines import ADDRESSES, Machine, connect, obstacle
from trainings import ENVIRONMENT, EXAMPLE, SAMPLES, Call, StartExample, Training, prepare


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StartCluster]:
    made: list[Cluster] = []

    def begin(num_workers: int, **variables: Any) -> Cluster:
        directory = tmp_path / f"cluster{len(made)}"
        directory.mkdir()
        made.append(Cluster(directory, free_port(), num_workers=num_workers, **variables))
        return made[-1]

    yield begin
    for one in made:
        for job in one.started:
            job.destroy()


@pytest.fixture(scope="session")
def weights_of_two(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an undisturbed cluster of two workers ends with."""
    it = Cluster(tmp_path_factory.mktemp("two"), free_port(), num_workers=2)
    (it.directory / "go").touch()
    try:
        workers = [it.scheduler(), it.worker(0), it.worker(1)][1:]
        assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0], workers[0].story()
        return end_of(workers[0])[4]
    finally:
        for job in it.started:
            job.destroy()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Two machines with a cable between them."""
    with contextlib.ExitStack() as stack:
        made = [Machine(tmp_path / f"machine{number}", stack) for number in range(len(ADDRESSES))]
        connect(*made)
        for machine, address in zip(made, ADDRESSES, strict=True):
            machine.plug(address)
        yield made


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data that trainings use."""
    path = tmp_path_factory.mktemp("digits") / "MNIST_Data"
    command = [PYTHON, EXAMPLE / "make_data.py", path, "--samples", str(SAMPLES)]
    subprocess.run(command, check=True, timeout=START_S, env=clean_env())
    return path


@pytest.fixture(scope="session")
def example(digits: Path) -> Iterator[StartExample]:
    """Call the example's scripts in a directory."""
    made: list[Training] = []

    def begin(directory: Path) -> tuple[Training, Call]:
        training = Training(directory)
        made.append(training)
        (directory / "MNIST_Data").symlink_to(digits)
        port = str(free_port())

        def call(script: str, *args: str) -> None:
            env = ENVIRONMENT | {"MS_SCHED_PORT": port}
            place = directory / f"call{len(training.jobs)}"
            training.jobs.append(start(["bash", str(EXAMPLE / script), *args], directory=place, env=env, cwd=directory))

        return training, call

    yield begin
    for training in made:
        for job in training.jobs:
            job.destroy()


@pytest.fixture(scope="session")
def on_one_machine(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A training that the script for one machine has started, at its end."""
    with contextlib.ExitStack() as stack:
        machine = Machine(tmp_path_factory.mktemp("single") / "machine", stack)
        training = Training(machine.directory)
        prepare(training.directory, digits)
        training.jobs.append(machine.start(["bash", "run_dynamic_cluster.sh"], env=ENVIRONMENT, cwd=training.directory))
        training.wait_for_end()
        return training


@pytest.fixture(scope="session")
def undisturbed(example: StartExample, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights that a training ends with, whichever script has started it."""
    if not obstacle():
        return request.getfixturevalue("on_one_machine").weights(0)
    training, call = example(tmp_path_factory.mktemp("undisturbed"))
    call("run.sh")
    training.wait_for_end()
    return training.weights(0)
