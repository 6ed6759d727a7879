"""Steps that compute for some milliseconds, until a file `stop` appears in the directory that is its argument.

While a file `slow-PID` is there, that process takes long to load its data.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import holdfast

SLOW_S = 0.05

marks = Path(sys.argv[1])
torch.set_num_threads(1)
run = holdfast.init()


class Inputs(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 256 == 0 and (marks / f"slow-{os.getpid()}").exists():
            time.sleep(SLOW_S)
        return torch.ones(512)


model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data = run.data(Inputs(), global_batch=512, shuffle=False)
run.protect(model=model, optimizer=optimizer, data=data)
net = run.data_parallel(model)


@run.step
def train(step: holdfast.Step) -> bool:
    stop = torch.tensor(float((marks / "stop").exists()))
    dist.all_reduce(stop)
    optimizer.zero_grad()
    net(step.batch()).sum().backward()
    optimizer.step()
    return bool(stop)


for step in run.steps(total=1_000_000):
    if train(step):
        run.stop("asked to")
os.write(1, f"rank {run.rank} ends after step {step.number}\n".encode())
