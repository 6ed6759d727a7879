"""A replica group of one rank under torchft; its state comes from another replica, and there are no checkpoints."""

from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import task
from torch import nn
from torch.optim import Optimizer
from torchft import Manager, ProcessGroupGloo


def make_manager(model: nn.Module, optimizer: Optimizer, *, name: str, host: str, timeout_s: float) -> Manager:
    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    timeout = timedelta(seconds=timeout_s)
    return Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        # A newcomer then takes part in its first step; otherwise that step would lose its samples too.
        use_async_quorum=False,
        timeout=timeout,
        replica_id=name,
        hostname=host,
        init_sync=False,
    )


def wait_for_all(folder: Path, number: int, *, num_replicas: int) -> None:
    """Until every replica is known to the lighthouse: a step with fewer would lose samples without a fault."""
    task.write_whole(folder / f"ready-{number}", "")
    while not all((folder / f"ready-{other}").exists() for other in range(num_replicas)):
        sleep(0.01)
