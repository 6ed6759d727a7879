"""Managers, and launchers beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from jobs import PYTHON, Job, cleaned_up, start
from managers import Begin

MANAGER = """
from holdfast.taskd import init_taskd_manager, start_taskd_manager

print("init", init_taskd_manager({config!r}), flush=True)
print("start", start_taskd_manager(), flush=True)
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start any command; whatever is alive at the end of the test is killed. What has ended must have left nothing."""
    with cleaned_up() as jobs:

        def launch(*command: object, env: Mapping[str, str] | None = None) -> Job:
            job = start(list(map(str, command)), directory=tmp_path / f"process{len(jobs)}", env=env)
            jobs.append(job)
            return job

        yield launch


@pytest.fixture
def manager(begin: Begin) -> Begin:
    """Start a manager with a configuration; it prints what its functions answer."""

    def launch(config: Mapping[str, object], env: Mapping[str, str] | None = None) -> Job:
        return begin(PYTHON, "-c", MANAGER.format(config=dict(config)), env=env)

    return launch


@pytest.fixture
def pod_ip() -> str:
    """An address of this machine that no other test uses: the manager's own port is free there."""
    number = os.getpid()
    return f"127.7.{number // 250 % 250 + 1}.{number % 250 + 1}"
