"""The same training as workload.py, written for torchft: no checkpoints, state comes from another replica.

Every replica has a fixed share of each step's samples, as with torchft's sampler; while it is missing, they are
not trained on. A step that is not committed is tried again with the same samples.
"""

import argparse
import os
from pathlib import Path

import task
import torch.nn.functional as F
from sizes import NUM_SAMPLES
from torchft import DistributedDataParallel
from torchft_replica import make_manager, wait_for_all
from workload import Order

NUM_RANKS = 4


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
    manager = make_manager(model, optimizer, name=f"rank{rank}", host="localhost", timeout_s=args.timeout)
    network = DistributedDataParallel(manager, model)
    wait_for_all(args.folder, rank, num_replicas=NUM_RANKS)
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
