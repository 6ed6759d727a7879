"""The output of a process of a cluster, in a file that bears its id."""

from __future__ import annotations

import os
import sys

from holdfast.errors import SpecError
from holdfast.spec.cluster import VARIABLES, ClusterSpec


def redirect_output(spec: ClusterSpec) -> None:
    """From here on, whatever this process writes is appended to its own file."""
    if not spec.log_dir:
        return
    name = f"{spec.role}_{spec.node_id.replace('/', '_')}.log"
    path = os.path.join(spec.log_dir, name)
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        valid = f"it must be a directory where {name} can be written: {error.strerror}"
        raise SpecError(VARIABLES["log_dir"].ours, spec.log_dir, valid) from error
    sys.stderr.write(f"holdfast: output goes to {path}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
