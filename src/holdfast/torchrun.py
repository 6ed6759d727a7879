"""`import holdfast.torchrun`, as a line of `torch/distributed/run.py`: every torchrun hands its job over.

It only says which rendezvous is meant where nobody names one. Any other process imports it without effect.
"""

from __future__ import annotations

import os

from holdfast.handover import is_torchrun

if is_torchrun():
    os.environ.setdefault("PET_RDZV_BACKEND", "holdfast")
