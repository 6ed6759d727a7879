"""nodes_workload.py for torchft: every node is a replica group of one rank, and state comes from another replica."""

import argparse
import os
from pathlib import Path
from time import monotonic

import task
import torch.nn.functional as F
from sizes import NUM_SAMPLES
from torchft import DistributedDataParallel
from torchft_replica import make_manager, wait_for_all
from workload import Order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timeout", type=float, required=True, metavar="S", help="of a collective")
    args = parser.parse_args()
    number, num_nodes = int(os.environ["NODE_NUMBER"]), int(os.environ["NUM_NODES"])
    model, optimizer = task.build(large=False)
    samples, order = task.samples(), Order(NUM_SAMPLES, global_batch=task.global_batch(large=False))
    manager = make_manager(
        model, optimizer, name=f"node{number}", host=os.environ["NODE_ADDRESS"], timeout_s=args.timeout
    )
    network = DistributedDataParallel(manager, model)
    wait_for_all(args.folder, number, num_replicas=num_nodes)
    with (args.folder / f"steps-{os.getpid()}").open("a", buffering=1) as steps:
        while True:
            optimizer.zero_grad()
            manager.start_quorum()
            step = manager.current_step() + 1
            images, labels, _ = samples[order.ids(step, number % num_nodes, num_nodes)]
            F.cross_entropy(network(images), labels).backward()
            if manager.should_commit():
                optimizer.step()
                steps.write(f"{monotonic()} {step} {manager.num_participants()}\n")


if __name__ == "__main__":
    main()
