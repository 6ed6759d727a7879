"""Train a small digit classifier that survives the loss of a worker.

`examples/mnist/train.py` with the SDK. There are no checkpoints in it, and no line about workers that die or hang:
what is worth knowing is which lines stand inside the guarded functions, and which before and after. Damaged memory is
what the machine does not notice by itself, so the step looks at its loss and says which weights are broken.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import holdfast
from holdfast import faults

if TYPE_CHECKING:
    from holdfast.sdk.session import Step

SIDE, CLASSES, SHIFTS, NOISE = 28, 10, 5, 2.5
TRAIN_SAMPLES, TEST_SAMPLES = 12_800, 1_000


class Digits(Dataset[tuple[Tensor, int]]):
    """MNIST-like: ten smooth shapes, each shifted and covered with noise."""

    def __init__(self, size: int, *, seed: int) -> None:
        coarse = torch.randn(CLASSES, 1, 7, 7, generator=torch.Generator().manual_seed(seed))
        smooth = F.interpolate(coarse, size=SIDE + SHIFTS - 1, mode="bilinear")
        crops = smooth.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
        self._shifted = crops.reshape(CLASSES, SHIFTS**2, SIDE**2)
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        # Holdfast seeds every sample by (seed, epoch, index): noise differs from epoch to epoch, and
        # is the same when a step is run again.
        label = index % CLASSES
        shape = self._shifted[label, torch.randint(SHIFTS**2, ())]
        return shape + NOISE * torch.randn(SIDE**2), label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--global-batch", type=int, default=128, help="samples of a step, over all workers")
    parser.add_argument("--log-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--damage-at", type=step_and_rank, metavar="STEP:RANK", help="overwrite weights there with NaN")
    args = parser.parse_args()

    run = holdfast.init()
    # Every worker runs these lines when it starts, also one that takes the place of another: no collectives here.
    torch.manual_seed(args.seed)
    layers = nn.Linear(SIDE**2, 1024), nn.ReLU(), nn.Linear(1024, 192), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(192, CLASSES)).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    digits = Digits(TRAIN_SAMPLES, seed=args.seed)
    data = run.data(digits, global_batch=args.global_batch, seed=args.seed)
    run.protect(model=model, optimizer=optimizer, data=data)
    network = run.data_parallel(model)
    damage_due = {args.damage_at}

    @run.step
    def train(step: Step) -> Tensor:
        if (step.number, run.rank) in damage_due:
            damage_due.clear()  # The step is run again, the damage is done once.
            say(f"rank {run.rank} overwrites model.0.weight with NaN at step {step.number}")
            nn.init.constant_(model[0].weight, math.nan)
        images, labels = step.batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images.to(run.device)), labels.to(run.device))
        if not loss.isfinite():
            broken = [f"model.{name}" for name, weight in model.named_parameters() if not weight.isfinite().all()]
            raise faults.MemoryDamaged(f"not finite: {', '.join(['the loss', *broken])}", tensors=broken)
        loss.backward()
        optimizer.step()
        return loss.detach()

    @run.section()
    def evaluate() -> float:
        """The share of right answers over the samples of all ranks."""
        torch.manual_seed(args.seed + run.rank)
        samples = [digits[index] for index in range(TEST_SAMPLES)]
        images, labels = torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])
        with torch.no_grad():
            right = (model(images.to(run.device)).argmax(1) == labels.to(run.device)).float().mean()
        if dist.is_initialized():
            dist.all_reduce(right)
        return float(right) / run.world_size

    say(f"rank {run.rank} is process {os.getpid()}")
    for step in run.steps(total=args.steps):
        loss = train(step)
        if step.number % args.log_every == args.log_every - 1:
            run.log(loss=loss)
        if step.number == args.steps - 1:
            run.log(accuracy=evaluate())
    say(f"rank {run.rank}, process {os.getpid()}: weights {fingerprint(model)}")


def say(line: str) -> None:
    """Print a line in one piece: workers share the output, and `print` may write the end of a line apart."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def step_and_rank(text: str) -> tuple[int, int]:
    step, _, rank = text.partition(":")
    return int(step), int(rank)


def fingerprint(model: nn.Module) -> str:
    """Equal for two models only if every bit of their weights is equal."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
