"""Trains with checkpoints in a directory, up to a step, and prints what each rank ends with.

`--kill STEP:RANK` and `--hold STEP:RANK` strike, once, when the checkpoint of that step is whole but has no name yet.
Files below the directory that are opened for reading are printed too.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import holdfast

HOLD_S = 3.0
SLOW_S = 0.1

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=Path)
parser.add_argument("total", type=int)
parser.add_argument("--every", type=int, default=10)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--ballast", type=int, default=1, help="MiB that are saved with the rest")
parser.add_argument("--stream", action="store_true")
parser.add_argument("--no-checkpoints", action="store_true")
parser.add_argument("--kill")
parser.add_argument("--hold")
parser.add_argument("--slow", type=int, default=1 << 30, help="the step from which on each takes a while")
parser.add_argument("--tear", type=int, default=-1, help="the step in whose update all are when rank 1 dies, once")
parser.add_argument("--bug", type=int, default=-1, help="the step at which rank 1 raises")
args = parser.parse_args()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def watch(event: str, details: tuple) -> None:
    if event == "open" and str(details[0]).startswith(str(args.directory)) and "r" in (details[1] or ""):
        say(f"read {details[0]}")
    if event == "os.rename":
        strike(str(details[1]))


def strike(path: str) -> None:
    for fault in ("kill", "hold"):
        step, _, rank = (getattr(args, fault) or "").partition(":")
        mark = Path(f"{args.directory}.{fault}")
        if not step or not path.endswith(f"rank_{rank}/step_{int(step):08}") or mark.exists():
            continue
        mark.touch()
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(HOLD_S)


def tear(mark: Path) -> None:
    """Rank 1 dies in its update, and the others wait in theirs."""
    if run.rank == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()


class Numbers(IterableDataset):
    """Samples by position; where it is, it keeps itself."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self):
        while True:
            self.position += 1
            part = self.position * run.world_size + run.rank
            yield torch.full((16,), part % 97 / 97), torch.tensor(part % 4)

    def state_dict(self) -> dict:
        return {"position": self.position}

    def load_state_dict(self, state: dict) -> None:
        self.position = state["position"]


sys.addaudithook(watch)
run = holdfast.init()
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
samples = TensorDataset(torch.randn(512, 16, generator=generator), torch.randint(4, (512,), generator=generator))
layers = nn.Linear(16, args.width), nn.BatchNorm1d(args.width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(args.width, 4)
model = nn.Sequential(*layers)
model.register_buffer("seen", torch.zeros(1), persistent=False)
ballast = nn.ParameterDict({"weights": nn.Parameter(torch.randn(args.ballast << 18), requires_grad=False)})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.9)
data = run.data(Numbers() if args.stream else samples, global_batch=32, seed=3)
run.protect(model=model, ballast=ballast, optimizer=optimizer, scheduler=scheduler, data=data)
if not args.no_checkpoints:
    run.checkpoint(args.directory, every=args.every, keep=2)
net = run.data_parallel(model)


@run.step
def train(step: holdfast.Step) -> torch.Tensor:
    inputs, labels = step.batch()
    if step.number >= args.slow:
        threading.Event().wait(SLOW_S)
    optimizer.zero_grad()
    if (step.number, run.rank) == (args.bug, 1):
        raise ValueError("a bug")
    loss = nn.functional.cross_entropy(net(inputs), labels)
    model.seen.add_(1.0)
    loss.backward()
    optimizer.step()
    if step.number == args.tear:
        tear(Path(f"{args.directory}.tear"))
    scheduler.step()
    return loss.detach()


for step in run.steps(total=args.total):
    run.log(loss=train(step))
moments = [value for slot in optimizer.state.values() for value in slot.values()]
state = [*model.parameters(), *ballast.values(), *model.buffers(), *moments]
digest = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in state))
digest.update(repr(scheduler.state_dict()).encode())
say(f"rank {run.rank} ends with {digest.hexdigest()[:16]}")
