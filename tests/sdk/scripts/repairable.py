"""Trains with the SDK; arguments `STEP:RANK:FAULT` say what strikes whom, once each. Prints the final weights."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast
from holdfast import faults

STEPS = 100
IS_NEWCOMER = os.environ.get("HOLDFAST_GENERATION", "1") != "1"
marks, plan = Path(sys.argv[1]), [fault.split(":") for fault in sys.argv[2:]]


def strike(step: int, place: str) -> None:
    for number, (at, rank, fault) in enumerate(plan):
        mark = marks / str(number)
        due = step == int(at) and run.rank == int(rank) and (place == "section") == (fault == "kill-in-section")
        lasts = fault == "bug" or (fault == "stuck" and not IS_NEWCOMER)
        if not due or (mark.exists() and not lasts):
            continue
        mark.touch()
        if fault == "pause":
            # Long enough that what a test does meanwhile falls into these steps.
            time.sleep(float(os.environ.get("PAUSE_S", "0.2")))
        elif fault.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault == "sleep":
            time.sleep(1000)
        elif fault == "spin":
            re.fullmatch(r"(a+)+", "a" * 60 + "b")
        elif fault == "stuck":
            raise LinkDown("eth0")
        else:
            raise ValueError(f"{fault} at {step}")


class LinkDown(Exception):
    """Of a process, until another takes its place."""


faults.register(LinkDown, kind="link")
torch.manual_seed(0)
run = holdfast.init()
generator = torch.Generator().manual_seed(1)
dataset = TensorDataset(torch.randn(1024, 32, generator=generator), torch.randint(10, (1024,), generator=generator))
model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = run.data(dataset, global_batch=64)
run.protect(model=model, optimizer=optimizer, data=data)
net = run.data_parallel(model)


@run.step
def train(step):
    images, labels = step.batch()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(images), labels)
    strike(step.number, "step")
    loss.backward()
    optimizer.step()
    return loss.detach()


@run.section(timeout=60)
def evaluate(step):
    strike(step.number, "section")
    return model.training


for step in run.steps(total=STEPS):
    train(step)
    if step.number % 10 == 9:
        evaluate(step)
state = [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state)).hexdigest()
sys.stdout.write(f"rank {run.rank} pid {os.getpid()} weights {digest[:16]}\n")
