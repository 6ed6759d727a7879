"""What the tests of TaskD's interface have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobs import Job

STARTED_S = 120.0
"""For processes that import torch, on a machine that has other work to do."""
SCRIPTS = Path(__file__).parent / "scripts"
REPAIRABLE = Path(__file__).parents[1] / "sdk" / "scripts" / "repairable.py"

Begin = Callable[..., Job]
"""A fixture that starts a process."""
