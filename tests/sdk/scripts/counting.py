"""A model that counts: the weight of a sample falls by exactly one each time that sample is trained on.

Arguments: a directory, then faults `STEP:RANK`, each of which kills that rank in that step, once. With `endless`, it
goes on until, at the end of an epoch, the directory has a file `enough`. Rank 0 prints how often each number of uses
occurs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import holdfast

NUM_SAMPLES, BATCH, REST, EPOCHS = 272, 32, 16, 3
marks, is_endless = Path(sys.argv[1]), "endless" in sys.argv
plan = [tuple(map(int, fault.split(":"))) for fault in sys.argv[2:] if ":" in fault]


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


run = holdfast.init()
weights = nn.Embedding(NUM_SAMPLES, 1)
nn.init.zeros_(weights.weight)
optimizer = torch.optim.SGD(weights.parameters(), lr=1.0)
data = run.data(Numbers(), global_batch=BATCH, seed=11, num_workers=2, micro_batch=5 if is_endless else None)
run.protect(weights=weights, optimizer=optimizer, data=data)
net = run.data_parallel(weights, loss="sum" if is_endless else "mean")


def strike(step: int) -> None:
    for number, (at, rank) in enumerate(plan):
        mark = marks / str(number)
        if (at, rank) == (step, run.rank) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@run.step
def train(step: holdfast.Step) -> None:
    ids = step.batch()
    is_rest = step.number % data.steps_per_epoch == data.steps_per_epoch - 1
    optimizer.zero_grad()
    loss = net(ids).mean() * (REST if is_rest else BATCH)
    if step.number % 2:
        strike(step.number)
    loss.backward()
    optimizer.step()
    if not step.number % 2:
        strike(step.number)


@run.step
def train_in_pieces(step: holdfast.Step) -> bool:
    optimizer.zero_grad()
    for ids in step.micro_batches():
        net(ids).sum().backward()
    is_enough = torch.tensor(float(run.is_main and (marks / "enough").exists()))
    torch.distributed.all_reduce(is_enough)
    optimizer.step()
    return bool(is_enough)


for step in run.steps(epochs=1 << 20 if is_endless else EPOCHS):
    if not is_endless:
        train(step)
        continue
    is_enough = train_in_pieces(step)
    (marks / f"step {step.number} of {run.world_size}").touch()
    if is_enough and step.number % data.steps_per_epoch == data.steps_per_epoch - 1:
        run.stop("enough")
if run.is_main:
    uses = Counter((-weights.weight.detach()).flatten().tolist())
    sys.stdout.write(f"uses {dict(uses)}\n")
