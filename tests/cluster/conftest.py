"""Clusters whose processes are all gone when the test is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, StartCluster
from jobs import free_port


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
