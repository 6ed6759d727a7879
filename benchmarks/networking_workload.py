"""A process of a cluster that does nothing but meet the others, and tells when it began to and when it was done.

The argument is the folder for what it tells. Times are seconds of the monotonic clock, which all processes of a machine
share.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from time import monotonic

import torch.distributed as dist

import holdfast


def tell(name: str, **times: float) -> None:
    unfinished = Path(sys.argv[1], f"{name}.{os.getpid()}")
    unfinished.write_text(json.dumps(times))
    unfinished.rename(unfinished.with_suffix(""))


# What `init()` would import: many processes that import at once measure the cores.
if os.environ["HOLDFAST_ROLE"] == "scheduler":
    importlib.import_module("holdfast.cluster.scheduler")
    tell("scheduler", entered_at=monotonic())
else:
    importlib.import_module("holdfast.cluster.worker")
    importlib.import_module("holdfast.sdk.session")

entered_at = monotonic()
run = holdfast.init()
tell(f"rank-{run.rank}", entered_at=entered_at, returned_at=monotonic())
dist.barrier()
