"""Trains in a cluster that forms itself; leaves a mark when a step of note is done, and prints how it ended.

The argument is a directory. Until a file `go` is in it, training is slow; a file `exit-RANK` makes that rank end, with
the code that is in it, and one `raise-RANK` makes it raise in a step. In the steps that a file `tear` names, all wait
in the middle of their update, and rank 1 dies there, once in each. A file `unguarded` makes all wait for each other
outside of their steps; with one `in-turn`, two functions make the steps in turn.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import holdfast

HELD_AT, STEPS = 20, 150
SAVE_EVERY = 10
MEET_EVERY = 7
SLOW_S = 0.3
"""A step; what a test does meanwhile falls into the steps after the mark."""


class Momentum:
    """SGD with momentum. That of torch imports a compiler first, which takes each process of a test seconds."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._speeds = [torch.zeros_like(parameter) for parameter in self._parameters]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, speed in zip(self._parameters, self._speeds, strict=True):
            speed.mul_(0.9).add_(parameter.grad)
            parameter.sub_(speed, alpha=0.1)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {str(number): speed for number, speed in enumerate(self._speeds)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for number, speed in enumerate(self._speeds):
            speed.copy_(state[str(number)])


here = Path(sys.argv[1])
# As on a machine with two GPUs.
with patch("torch.cuda.is_available", return_value=True), patch("torch.cuda.device_count", return_value=2):
    run = holdfast.init()
assert run.device == torch.device("cuda", run.local_rank % 2)
assert dist.get_world_size() == run.world_size
(here / f"training-{os.getpid()}").touch()
generator = torch.Generator().manual_seed(1)
dataset = TensorDataset(torch.randn(256, 16, generator=generator), torch.randint(4, (256,), generator=generator))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = Momentum(model.parameters())
data = run.data(dataset, global_batch=32)
run.protect(model=model, optimizer=optimizer, data=data)
run.checkpoint(here / "saved", every=SAVE_EVERY)
net = run.data_parallel(model)
torn = [int(number) for number in (here / "tear").read_text().split()] if (here / "tear").exists() else []


def make_step(step: holdfast.Step) -> None:
    dist.barrier()
    if (here / f"raise-{run.rank}").exists():
        raise ValueError("a bad label")
    model.zero_grad()
    inputs, labels = step.batch()
    nn.functional.cross_entropy(net(inputs), labels).backward()
    optimizer.step()
    if step.number in torn:
        mark = here / f"torn-{step.number}"
        if run.rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()


train = run.step(make_step)
train_in_turn = run.step(lambda step: make_step(step)) if (here / "in-turn").exists() else train


@run.section()
def meet(number: int) -> None:
    """Raises on whoever meets ranks that are somewhere else."""
    numbers = [torch.empty(1, dtype=torch.int64) for _ in range(run.world_size)]
    dist.all_gather(numbers, torch.tensor([number]))
    assert [int(each) for each in numbers] == [number] * run.world_size


passed: list[int] = []
for step in run.steps(total=STEPS):
    if step.number % MEET_EVERY == 0:
        meet(step.number)
    (train_in_turn if step.number % 2 else train)(step)
    if step.number % MEET_EVERY == 0:
        meet(-step.number)
    passed.append(step.number)
    if step.number == HELD_AT:
        (here / f"held-{run.rank}").touch()
    if (order := here / f"exit-{run.rank}").exists():
        code = int(order.read_text())
        order.unlink()
        sys.exit(code)
    if step.number >= HELD_AT and not (here / "go").exists():
        time.sleep(SLOW_S)
        if (here / "unguarded").exists():
            dist.barrier()
digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()
assert passed == list(range(passed[0], STEPS)), "each step comes once"
end = f"rank {run.rank} local {run.local_rank} of {run.world_size} pid {os.getpid()} weights {digest[:16]}"
sys.stdout.write(end + "\n")
sys.stdout.flush()
