"""`torchrun --rdzv-backend holdfast`: torch asks its plug-ins for this rendezvous, and torchrun becomes our launcher.

The process, its arguments and its environment stay; only the program is another one, and it knows every flag. Nothing
is imported here that torch does not need anyway: every torchrun of this environment loads this file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn


def handler() -> Callable[[object], NoReturn]:
    """What torch registers under our name."""
    return become_holdfast


def become_holdfast(_parameters: object) -> NoReturn:
    if not is_torchrun():
        raise ValueError("--rdzv-backend holdfast is for the command torchrun; programs start 'holdfast run' instead")
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a file in the working directory must not be taken for a module of ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "holdfast.cli.main", "run", *sys.argv[1:]])


def is_torchrun() -> bool:
    """Whether the arguments of this process are torchrun's; a program that uses torch's launcher has its own."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    return os.path.basename(sys.argv[0]) == "torchrun" or getattr(module, "name", "") == "torch.distributed.run"
