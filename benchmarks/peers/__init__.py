"""Systems that others wrote, measured with the same workload. Each is one small file, unaware of the others."""

import os
from pathlib import Path

from peers.dlrover import DLROVER
from peers.nvrx import NVRX
from peers.ray import RAY
from peers.torchft import TORCHFT

PEERS = {"torchft": TORCHFT, "dlrover": DLROVER, "nvrx": NVRX, "ray": RAY}
"""By the name of the flag and of the environment's folder."""


def default_folder() -> Path:
    """Where the peers' environments are kept between runs."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "holdfast" / "peers"
