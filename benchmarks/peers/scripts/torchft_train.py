"""The same training as workload.py, written for torchft: no checkpoints, state comes from another replica.

Every replica has a fixed share of each step's samples, as with torchft's sampler; while it is missing, they are
not trained on. A step that is not committed is tried again with the same samples.
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import task
import torch.nn.functional as F
from sizes import NUM_SAMPLES
from torchft import DistributedDataParallel, Manager, ProcessGroupGloo
from workload import Order

NUM_RANKS = 4


def wait_for_all(folder: Path, rank: int) -> None:
    """Until every replica is known to the lighthouse: a step with fewer would lose samples without a fault."""
    task.write_whole(folder / f"ready-{rank}", "")
    while not all((folder / f"ready-{other}").exists() for other in range(NUM_RANKS)):
        sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoint-every", type=int, default=0, help="accepted: there are none")
    parser.add_argument("--gate", type=int, default=0, help="accepted: there are no turns")
    parser.add_argument("--large", action="store_true", help="the large model")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="of a collective")
    args = parser.parse_args()

    rank = int(os.environ["REPLICA_GROUP_ID"])
    model, optimizer = task.build(large=args.large)
    samples = task.samples()
    order = Order(NUM_SAMPLES, global_batch=task.global_batch(large=args.large))

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    timeout = timedelta(seconds=args.timeout)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        # A newcomer then takes part in its first step; otherwise that step would lose its samples too.
        use_async_quorum=False,
        timeout=timeout,
        replica_id=f"rank{rank}",
        hostname="localhost",
        init_sync=False,
    )
    network = DistributedDataParallel(manager, model)
    wait_for_all(args.folder, rank)
    trace = task.Trace(args.folder, rank)
    while manager.current_step() < args.steps:
        optimizer.zero_grad()
        manager.start_quorum()
        step = manager.current_step() + 1
        images, labels, ids = samples[order.ids(step, rank, NUM_RANKS)]
        trace.began(step, ids)
        F.cross_entropy(network(images), labels).backward()
        if manager.should_commit():
            optimizer.step()
            trace.finished(step)
    trace.ended(model)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
