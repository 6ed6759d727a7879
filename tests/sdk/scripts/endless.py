"""Trains until a file `stop` appears in the directory that is its argument; it leaves marks there: when it trains, and
when a standby parks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast

marks = Path(sys.argv[1])
run = holdfast.init()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.protect(model=model, optimizer=optimizer)
net = run.data_parallel(model)


@run.step
def train(step: holdfast.Step) -> bool:
    stop = torch.tensor(float((marks / "stop").exists()))
    dist.all_reduce(stop)
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return bool(stop)


def mark_parking() -> None:
    """Leave the mark when the agent has been told, not before."""
    channel = run._place._channel  # noqa: SLF001
    send = channel.send

    def send_and_mark(message: object) -> None:
        send(message)
        if type(message).__name__ == "AtLoop":
            (marks / f"standby-{os.getpid()}").touch()

    channel.send = send_and_mark


if run.rank < 0:
    mark_parking()
for step in run.steps(total=1_000_000):
    if train(step):
        run.stop("asked to")
    if step.number == 0:
        (marks / "trains").touch()
