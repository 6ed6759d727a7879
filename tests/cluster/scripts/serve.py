"""A parameter server: says its rank, and stays until the job has ended."""

from __future__ import annotations

import sys

import holdfast

run = holdfast.init()
sys.stdout.write(f"{run.role} {run.rank} of {run.num_servers}\n")
run.serve()
try:
    run.steps(total=1)
except AttributeError as error:
    sys.stdout.write(f"{error}\n")
