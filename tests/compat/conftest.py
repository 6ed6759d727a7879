"""Probes that run once under torchrun and once under each way of ours, and are then compared by many tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from jobs import once_each
from probes import IDENTITY, LAUNCHERS, MODES, Records, run_probe


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Records]:
    """What the probe saw under a launcher and a mode: one record for each rank. Each pair runs once."""
    directory = tmp_path_factory.mktemp("probe files")
    (directory / "crowd").mkdir()
    for name in ("identity.py", "lonely.py", "crowd/__main__.py"):
        shutil.copy(IDENTITY, directory / name)

    def look(launcher: str, mode: str) -> Records:
        where = tmp_path_factory.mktemp(f"{launcher}_{mode}")
        return run_probe(LAUNCHERS[launcher], MODES[mode], directory, where)

    return once_each(look)
