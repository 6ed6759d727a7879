"""The training script that the benchmark runs under every launcher, unmodified.

A plain DDP script with its own checkpoints, like any user's, which also leaves traces for the
harness in its folder: `pid-R` while rank R runs, and one record per step begun and finished.
With --gate it waits before every so many steps for a byte in the FIFO `gate-R`, so that two jobs
can take turns on one machine without either being stopped or slowed.
"""

import argparse
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import task
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MakeTrace = Callable[[Path, int], task.Trace]


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


class Order:
    """Which samples a rank uses at a step; follows from the step alone."""

    def __init__(self, size: int, *, global_batch: int) -> None:
        self._size, self._batch = size, global_batch
        self._epoch, self._order = -1, torch.empty(0)

    def ids(self, step: int, rank: int, num_ranks: int) -> torch.Tensor:
        epoch, at = divmod((step - 1) * self._batch, self._size)
        if epoch != self._epoch:
            random = torch.Generator().manual_seed(epoch)
            self._epoch, self._order = epoch, torch.randperm(self._size, generator=random)
        share = self._batch // num_ranks
        return self._order[at + rank * share : at + (rank + 1) * share]


def train(args: argparse.Namespace, rank: int, *, make_trace: MakeTrace = task.Trace) -> None:
    model, optimizer = task.build(large=args.large)
    samples = task.samples()
    order = Order(len(samples), global_batch=task.global_batch(large=args.large))
    checkpoint = args.folder / "checkpoint.pt"
    done = load(checkpoint, model, optimizer)
    network = DistributedDataParallel(model)

    trace = make_trace(args.folder, rank)
    gate = task.Gate(args.folder, rank, every=args.gate)
    for step in range(done + 1, args.steps + 1):
        if gate.is_shut(step):
            break
        images, labels, ids = samples[order.ids(step, rank, dist.get_world_size())]
        trace.began(step, ids)
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
        trace.finished(step)
        if rank == 0 and args.checkpoint_every and step % args.checkpoint_every == 0:
            save(checkpoint, step, model, optimizer)
    trace.ended(model)


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS")
    parser.add_argument("--gate", type=int, default=0, metavar="STEPS", help="length of a turn")
    parser.add_argument("--large", action="store_true", help="the large model")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="S", help="of a collective")
    return parser.parse_args(arguments)


def main(*, make_trace: MakeTrace = task.Trace) -> None:
    args = parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    train(args, dist.get_rank(), make_trace=make_trace)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
