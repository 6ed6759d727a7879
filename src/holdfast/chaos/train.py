"""The training of every experiment: a small classifier, and beside it weights that count the uses of each sample.

It writes what it does to one file of JSON lines: `step`, once a rank has committed one; `epoch`, by rank 0 at the
end of each, with a digest of all weights and how often each sample was used; `end`. It goes on until, at the end of an
epoch, the file `enough` lies beside that file, or its time is up.

Sums of whole numbers are exact in every order, so the counts do not depend on the number of ranks; the digest does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import holdfast

NUM_SAMPLES, BATCH, FEATURES, CLASSES = 128, 16, 16, 4

parser = argparse.ArgumentParser(description="Train until told that it is enough.")
parser.add_argument("records", type=Path, help="file to which everything is written")
parser.add_argument("--pace-ms", type=float, default=0.0, help="how long a step takes at least")
parser.add_argument("--epochs", type=int, default=1 << 20, help="the most epochs")
parser.add_argument("--limit-s", type=float, default=3600.0, help="it ends after so long, whoever forgot to end it")
args = parser.parse_args()
enough, ends_at = args.records.parent / "enough", time.time() + args.limit_s


class Points(Dataset[tuple[int, torch.Tensor, int]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self._labels = torch.arange(NUM_SAMPLES) % CLASSES
        centres = torch.randn(CLASSES, FEATURES, generator=generator)
        self._points = centres[self._labels] + 0.7 * torch.randn(NUM_SAMPLES, FEATURES, generator=generator)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        return index, self._points[index], int(self._labels[index])


class Model(nn.Module):
    """The classifier, and one weight per sample that falls by one whenever the sample is used."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES))
        self.uses = nn.Embedding(NUM_SAMPLES, 1)
        nn.init.zeros_(self.uses.weight)
        self.register_buffer("enough", torch.zeros(1))
        self.enough: torch.Tensor

    def forward(self, index: torch.Tensor, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.net(point), self.uses(index)


def note(what: str, **fields: object) -> None:
    line = {"what": what, "at": time.time(), "rank": run.rank, "world": run.world_size, "pid": os.getpid(), **fields}
    os.write(records, json.dumps(line).encode() + b"\n")


def digest() -> str:
    weights = [tensor for name, tensor in model.state_dict().items() if name != "enough"]
    tensors = [*weights, *(v for s in adam.state.values() for v in s.values())]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


torch.set_num_threads(1)
torch.manual_seed(0)
records = os.open(args.records, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
run = holdfast.init()
model = Model()
adam = torch.optim.Adam(model.net.parameters(), lr=3e-3)
counting = torch.optim.SGD(model.uses.parameters(), lr=1.0)
data = run.data(Points(), global_batch=BATCH, seed=7)
run.protect(model=model, adam=adam, counting=counting, data=data)
net = run.data_parallel(model, loss="sum")


@run.step
def train(step: holdfast.Step) -> tuple[float, list[int]]:
    began_at = time.monotonic()
    index, point, label = step.batch()
    adam.zero_grad()
    counting.zero_grad()
    scores, uses = net(index, point)
    loss = nn.functional.cross_entropy(scores, label, reduction="sum") / BATCH
    total = torch.tensor([loss.item(), float(run.is_main and (enough.exists() or time.time() > ends_at))])
    torch.distributed.all_reduce(total)
    model.enough.fill_(total[1])
    time.sleep(max(0.0, args.pace_ms / 1000 - (time.monotonic() - began_at)))
    (loss + uses.sum()).backward()
    adam.step()
    counting.step()
    return total[0].item(), index.tolist()


last_at = time.monotonic()
for step in run.steps(epochs=args.epochs):
    result = train(step)
    now = time.monotonic()
    if result is not None:
        loss, samples = result
        note("step", step=step.number, epoch=step.epoch, loss=loss, step_ms=1000 * (now - last_at), samples=samples)
    last_at = now
    if step.number % data.steps_per_epoch == data.steps_per_epoch - 1:
        if run.is_main:
            uses = Counter(int(count) for count in (-model.uses.weight.detach()).flatten().tolist())
            note("epoch", epoch=step.epoch, weights=digest(), uses={str(count): n for count, n in uses.items()})
        # Kept with the state: a rank that got this step from a peer has to decide the same.
        if model.enough.item():
            run.stop("enough")
note("end")
