"""Trains until, at the end of an epoch, its directory has a file `enough`; or, with a third argument, so many epochs.

Arguments: the directory, and how long each step lasts at least, in seconds. One part of the model counts: the weight of
a sample falls by exactly one each time that sample is trained on, whatever the size of the world. The other is a net,
whose weights depend on every bit. Each process notes its steps in a file of its own, and tells in the end what it has.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast

NUM_SAMPLES, BATCH, MICRO_BATCH = 272, 32, 8
folder, pace_s, epochs = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Model(nn.Module):
    """The sum of the losses of some samples."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("inputs", torch.randn(NUM_SAMPLES, 16, generator=generator), persistent=False)
        self.register_buffer("labels", torch.randint(4, (NUM_SAMPLES,), generator=generator), persistent=False)
        self.counts = nn.Embedding(NUM_SAMPLES, 1)
        nn.init.zeros_(self.counts.weight)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(self.inputs[ids]), self.labels[ids], reduction="sum")
        return self.counts(ids).sum() + loss


torch.manual_seed(0)
run = holdfast.init()
model = Model()
counting = torch.optim.SGD(model.counts.parameters(), lr=1.0)
learning = torch.optim.Adam(model.net.parameters(), lr=1e-3)
data = run.data(Numbers(), global_batch=BATCH, micro_batch=MICRO_BATCH, seed=11)
run.protect(model=model, counting=counting, learning=learning, data=data)
parallel = run.data_parallel(model, loss="sum")


@run.step
def train(step: holdfast.Step) -> bool:
    counting.zero_grad()
    learning.zero_grad()
    for ids in step.micro_batches():
        parallel(ids).backward()
    is_enough = torch.tensor(float(run.is_main and (folder / "enough").exists()))
    dist.all_reduce(is_enough)
    time.sleep(pace_s)
    counting.step()
    learning.step()
    return bool(is_enough)


with (folder / f"steps-{os.getpid()}").open("a", buffering=1) as notes:
    for step in run.steps(epochs=epochs or 1 << 20):
        is_enough = train(step)
        notes.write(f"{time.monotonic()} {step.number} {run.rank} {run.world_size}\n")
        if is_enough and step.number % data.steps_per_epoch == data.steps_per_epoch - 1:
            run.stop("enough")
uses = Counter((-model.counts.weight.detach()).flatten().tolist())
digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.net.state_dict().values())).hexdigest()
end = f"rank {run.rank} pid {os.getpid()} uses {dict(uses)} weights {digest[:16]}\n"
os.write(1, end.encode())
