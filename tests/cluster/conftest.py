"""Clusters whose processes are all gone when the test is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import END, SCRIPTS, SOURCES, START_S, Cluster, StartCluster, end_of
from jobs import PYTHON, Job, clean_env, free_port, start
from machines import joined, obstacle
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
def unanswered(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """An undisturbed cluster of two workers with IPv6, on a machine whose name server never answers, at its end."""
    directory = tmp_path_factory.mktemp("unanswered")
    command = ["unshare", "--net", "--mount", PYTHON, str(SCRIPTS / "unanswered.py"), str(directory)]
    env = {"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    job = start(command, directory=directory / "output", env=env)
    try:
        job.wait(within_s=START_S)
        return job
    finally:
        job.destroy()


@pytest.fixture(scope="session")
def weights_of_two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an undisturbed cluster of two workers ends with."""
    if not obstacle():
        found = END.search(request.getfixturevalue("unanswered").err)
        assert found is not None, "its workers have ended well"
        return found[5]
    it = Cluster(tmp_path_factory.mktemp("two"), free_port(), num_workers=2)
    (it.directory / "go").touch()
    try:
        workers = [it.scheduler(), it.worker(0), it.worker(1)][1:]
        assert [worker.wait(within_s=START_S) for worker in workers] == [0, 0], workers[0].story()
        return end_of(workers[0])[4]
    finally:
        for job in it.started:
            job.destroy()


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
    with joined(1, tmp_path_factory.mktemp("single")) as [machine]:
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
