"""A process of a cluster that does nothing but meet the others, and tells when it began to and when it was done.

The argument is the folder for what it tells. Times are seconds of the monotonic clock, which all processes of a machine
share.
"""

import json
import os
import sys
from pathlib import Path
from time import monotonic

import torch.distributed as dist

import holdfast

# What `init()` would import: many processes that import at once measure the cores.
import holdfast.cluster.worker
import holdfast.sdk.session

entered_at = monotonic()
run = holdfast.init()
returned_at = monotonic()
told = Path(sys.argv[1], f"rank-{run.rank}")
unfinished = told.with_suffix(f".{os.getpid()}")
unfinished.write_text(json.dumps({"entered_at": entered_at, "returned_at": returned_at}))
unfinished.rename(told)
dist.barrier()
