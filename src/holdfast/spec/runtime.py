"""Where running jobs can be found on this machine, and what nodes inherit of the environment."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import JobError

RUNTIME_DIR = "HOLDFAST_RUNTIME_DIR"
OURS = ("PET_", "HOLDFAST_TOKEN", RUNTIME_DIR)
"""What would change how a node runs; the job's fields say that."""


def runtime_directory() -> Path:
    """A directory of this user alone, for sockets and for jobs without a --log-dir; made if it is missing."""
    if given := os.environ.get(RUNTIME_DIR):
        path = Path(given).absolute()
    elif base := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(base) / "holdfast"
    else:
        path = Path(f"/tmp/holdfast-{os.geteuid()}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise JobError(f"{path} cannot be made: {error.strerror} ({RUNTIME_DIR})") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise JobError(f"{path} is open to others, or theirs: remove it, or set {RUNTIME_DIR}")
    return path


def node_environment(extra: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, **extra}
