"""The training script that the benchmark runs under every launcher, unmodified.

A plain DDP script with its own checkpoints, like any user's, which also leaves traces for the
harness in its folder: `pid-R` while rank R runs, and `steps-R`, one record per finished step.
With --gate it waits before every so many steps for a byte in the FIFO `gate-R`, so that two jobs
can take turns on one machine without either being stopped or slowed.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from records import StepWriter
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, INPUTS, CLASSES = 32, 784, 10


def build_model() -> nn.Module:
    layers = nn.Linear(INPUTS, 1024), nn.ReLU(), nn.Linear(1024, 144), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(144, CLASSES))


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restore in place; returns the step that is done, 0 when there is no checkpoint."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def announce(path: Path) -> None:
    """Publish this process's pid, whole or not at all."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(str(os.getpid()))
    unfinished.replace(path)


def train(args: argparse.Namespace, rank: int) -> None:
    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    checkpoint = args.folder / "checkpoint.pt"
    done = load(checkpoint, model, optimizer)
    network = DistributedDataParallel(model)

    log = StepWriter(args.folder / f"steps-{rank}")
    gate = os.open(args.folder / f"gate-{rank}", os.O_RDONLY) if args.gate else None
    for step in range(done + 1, args.steps + 1):
        # An empty read means that the harness is gone.
        if gate is not None and (step - 1) % args.gate == 0 and not os.read(gate, 1):
            break
        random = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
        labels = torch.randint(CLASSES, (BATCH,), generator=random)
        images = torch.randn(BATCH, INPUTS, generator=random) + labels[:, None] / CLASSES
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
        log.finished(step)
        if rank == 0 and args.checkpoint_every and step % args.checkpoint_every == 0:
            save(checkpoint, step, model, optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS")
    parser.add_argument("--gate", type=int, default=0, metavar="STEPS", help="length of a turn")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    announce(args.folder / f"pid-{rank}")
    train(args, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
