"""The output of a process of a cluster, in a file that bears its id."""

from __future__ import annotations

import os
import sys

from holdfast.spec.cluster import ClusterSpec


def redirect_output(spec: ClusterSpec) -> None:
    """From here on, whatever this process writes is appended to its own file."""
    if not spec.log_dir:
        return
    path = os.path.join(spec.log_dir, f"{spec.role}_{spec.node_id.replace('/', '_')}.log")
    sys.stderr.write(f"holdfast: output goes to {path}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
