"""Probes that run once under torchrun and once under each way of ours, and are then compared by many tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from probes import IDENTITY, LAUNCHERS, MODES, Records, run_probe


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Records]:
    """What the probe saw under a launcher and a mode: one record for each rank. Each pair runs once."""
    directory = tmp_path_factory.mktemp("probe files")
    (directory / "crowd").mkdir()
    for name in ("identity.py", "lonely.py", "crowd/__main__.py"):
        shutil.copy(IDENTITY, directory / name)
    seen: dict[tuple[str, str], Records] = {}

    def look(launcher: str, mode_name: str) -> Records:
        if (launcher, mode_name) not in seen:
            where = tmp_path_factory.mktemp(f"{launcher}_{mode_name}")
            seen[launcher, mode_name] = run_probe(LAUNCHERS[launcher], MODES[mode_name], directory, where)
        return seen[launcher, mode_name]

    return look
