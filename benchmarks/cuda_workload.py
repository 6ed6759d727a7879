"""A training on one GPU, plain or with the SDK; prints the time of a step as JSON.

With --assert-at it fails an assertion on the device at that step, once: no process survives that.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import holdfast

WARM_UP = 50
BATCH, INPUTS, CLASSES = 2048, 1024, 16


def build(width: int) -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    torch.manual_seed(0)
    layers = [nn.Linear(INPUTS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES)]
    model = nn.Sequential(*layers).cuda()
    data = TensorDataset(torch.randn(BATCH, INPUTS).cuda(), torch.randint(CLASSES, (BATCH,)).cuda())
    return model, torch.optim.Adam(model.parameters(), lr=1e-4, fused=True), data


def tell(**values: object) -> None:
    """One line, in one piece: ranks write to the same place."""
    os.write(1, json.dumps(values).encode() + b"\n")


class Clock:
    """The mean time of a step after a few for warming up; the device is waited for at both ends only."""

    def __init__(self, steps: int) -> None:
        self._steps, self._began = steps, 0.0

    def tick(self, step: int) -> None:
        if step in (WARM_UP, self._steps):
            torch.cuda.synchronize()
            if step == self._steps:
                ms = (time.perf_counter() - self._began) * 1000 / (self._steps - WARM_UP)
                tell(step_ms=ms)
            self._began = time.perf_counter()


def train_plain(args: argparse.Namespace) -> None:
    dist.init_process_group("nccl")
    model, optimizer, data = build(args.width)
    network, clock = DistributedDataParallel(model), Clock(args.steps)
    for step in range(args.steps):
        clock.tick(step)
        images, labels = data.tensors
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    clock.tick(args.steps)
    dist.destroy_process_group()


def train_with_sdk(args: argparse.Namespace) -> None:
    run = holdfast.init()
    model, optimizer, dataset = build(args.width)
    data = run.data(dataset, global_batch=BATCH, shuffle=False)
    run.protect(model=model, optimizer=optimizer, data=data)
    network, clock = run.data_parallel(model), Clock(args.steps)
    fail = assertion_at(args.assert_at, args.mark)

    @run.step
    def train(step: holdfast.Step) -> None:
        images, labels = dataset.tensors
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        fail(step.number, labels)
        loss.backward()
        optimizer.step()

    for step in run.steps(total=args.steps):
        clock.tick(step.number)
        train(step)
    clock.tick(args.steps)
    digest = sum(float(p.detach().double().sum()) for p in model.parameters()).hex()
    tell(rank=run.rank, pid=os.getpid(), weights=digest)


def assertion_at(step_to_fail: int, mark: Path | None) -> Callable[[int, torch.Tensor], None]:
    def fail(step: int, labels: torch.Tensor) -> None:
        if step == step_to_fail and mark is not None and os.environ.get("RANK") == "0" and not mark.exists():
            mark.touch()
            torch.zeros(4, device="cuda")[labels + 1000].sum()

    return fail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sdk", action="store_true")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--assert-at", type=int, default=-1, metavar="STEP")
    parser.add_argument("--mark", type=Path, help="a file that tells that the assertion has failed already")
    args = parser.parse_args()
    (train_with_sdk if args.sdk else train_plain)(args)


if __name__ == "__main__":
    main()
