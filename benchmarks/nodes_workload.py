"""A training whose processes write down, for each step, when it ended and how many of them there were.

With --plain it is a DDP script as torchrun restarts it, with a checkpoint after every step.
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path
from time import monotonic

import task
import torch.distributed as dist
import torch.nn.functional as F
import workload
from torch.nn.parallel import DistributedDataParallel


def train_plain(folder: Path, *, timeout_s: float) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    model, optimizer = task.build(large=False)
    samples, checkpoint = task.samples(), folder / "checkpoint.pt"
    done = workload.load(checkpoint, model, optimizer)
    order = workload.Order(len(samples), global_batch=task.global_batch(large=False))
    network = DistributedDataParallel(model)
    with (folder / f"steps-{os.getpid()}").open("a", buffering=1) as steps:
        for step in range(done + 1, 1 << 30):
            images, labels, _ = samples[order.ids(step, dist.get_rank(), dist.get_world_size())]
            optimizer.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()
            steps.write(f"{monotonic()} {step} {dist.get_world_size()}\n")
            if dist.get_rank() == 0:
                workload.save(checkpoint, step, model, optimizer)


def train_with_sdk(folder: Path) -> None:
    import holdfast

    run = holdfast.init()
    model, optimizer = task.build(large=False)
    data = run.data(task.samples(), global_batch=task.global_batch(large=False))
    run.protect(model=model, optimizer=optimizer, data=data)
    network = run.data_parallel(model)

    @run.step
    def train(step: holdfast.Step) -> None:
        images, labels, _ = step.batch()
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()

    with (folder / f"steps-{os.getpid()}").open("a", buffering=1) as steps:
        for step in run.steps(total=1 << 30):
            train(step)
            steps.write(f"{monotonic()} {step.number} {run.world_size}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="S", help="of a collective, with --plain")
    args = parser.parse_args()
    if args.plain:
        train_plain(args.folder, timeout_s=args.timeout)
    else:
        train_with_sdk(args.folder)


if __name__ == "__main__":
    main()
