"""A training with much state, in which the faults of a plan strike, each once.

Everything it does is written to a log of its rank, so that a run with faults can be compared with one without.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast
from holdfast import faults

HERE = Path(sys.argv[1])
PLAN = json.loads((HERE / "plan.json").read_text())
RANK = int(os.environ["RANK"])
IS_NEWCOMER = os.environ["HOLDFAST_GENERATION"] != "1"
EVALUATE_EVERY = 10
SAVE_EVERY = 20
SUM_SIZE = 1 << 14
"""Large enough that a collective takes several messages."""

log = os.open(HERE / f"rank{RANK}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(what: str, **fields: object) -> None:
    os.write(log, json.dumps({"what": what, "rank": RANK, "pid": os.getpid(), **fields}).encode() + b"\n")


def watch_reads(event: str, args: tuple) -> None:
    if event == "open" and str(args[0]).startswith(f"{HERE}/checkpoints") and "r" in (args[1] or ""):
        note("read", path=str(args[0]))


sys.addaudithook(watch_reads)


class Hiccup(Exception):
    """A transient fault of the user's own."""


faults.register(Hiccup)
number = -1
"""The step that is under way."""


def strike(phase: str) -> None:
    for fault in PLAN["faults"]:
        if fault["phase"] == phase and fault["rank"] == RANK and fault["step"] in (number, None):
            try:
                os.close(os.open(HERE / f"fired{fault['id']}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            note("fault", id=fault["id"], step=number)
            cause(fault)


def cause(fault: dict) -> None:
    match fault["kind"]:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "raise":
            raise ValueError(f"fault {fault['id']}")
        case "hiccup":
            raise Hiccup(f"fault {fault['id']}")
        case "damage":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(float("nan"))
            raise faults.MemoryDamaged(f"fault {fault['id']}")


if IS_NEWCOMER:
    strike("start")
run = holdfast.init()
if IS_NEWCOMER:
    strike("build")
# What a newcomer builds must not matter, nor what any rank but the first does.
torch.manual_seed(os.getpid() if IS_NEWCOMER else 1000 + RANK)


class Noisy(torch.utils.data.Dataset):
    """Samples with noise that is drawn when they are read."""

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        strike("data")
        return torch.full((16,), index / 640) + 0.1 * torch.randn(16), index % 4


class Average:
    """A running average of the parameters; its state is the live tensors, as is usual."""

    def __init__(self) -> None:
        self.tensors = [parameter.detach().clone() for parameter in model.parameters()]
        self.seen = torch.zeros(1)
        self.num_updates = 0

    def see(self) -> None:
        self.seen.mul_(0.5).add_(number)

    def update(self) -> None:
        self.num_updates += 1
        for mine, parameter in zip(self.tensors, model.parameters(), strict=True):
            mine.lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict:
        return {"tensors": self.tensors, "seen": self.seen, "num_updates": self.num_updates}

    def load_state_dict(self, state: dict) -> None:
        self.num_updates = state["num_updates"]
        for mine, theirs in zip([*self.tensors, self.seen], [*state["tensors"], state["seen"]], strict=True):
            mine.copy_(theirs)


body = nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2))
head = nn.Linear(48, 4)
model = nn.Sequential(body, head)
adam = torch.optim.Adam(body.parameters(), lr=1e-3)
sgd = torch.optim.SGD(head.parameters(), lr=1e-2, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(adam, 7, gamma=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=11)
average = Average()
data = run.data(Noisy(), global_batch=32, seed=5)
adam.register_step_pre_hook(lambda *_: strike("optimizer begins"))
run.protect(model=model, adam=adam, sgd=sgd, scheduler=scheduler, scaler=scaler, average=average, data=data)
run.checkpoint(HERE / "checkpoints", every=SAVE_EVERY)
adam.register_step_post_hook(lambda *_: strike("optimizer ends"))
body[0].weight.register_hook(lambda _: strike("backward"))
net = run.data_parallel(model)
finished: set[int] = set()


@run.step
def train(step: holdfast.sdk.session.Step) -> torch.Tensor:
    global number
    number = step.number
    note("attempt", step=number)
    inputs, labels = step.batch()
    inputs.mul_(2.0)
    average.see()
    adam.zero_grad()
    sgd.zero_grad()
    outputs = net(inputs) * (1.0 + random.random())
    strike("forward")
    loss = nn.functional.cross_entropy(outputs, labels)
    total = loss.detach().repeat(SUM_SIZE)
    work = dist.all_reduce(total, async_op=True)
    strike("collective")
    work.wait()
    scaler.scale(loss).backward()
    scaler.unscale_(adam)
    nn.utils.clip_grad_norm_(body.parameters(), 1.0)
    scaler.step(adam)
    strike("between optimizers")
    scaler.step(sgd)
    scaler.update()
    scheduler.step()
    average.update()
    strike("end of step")
    finished.add(number)
    return total[0]


@run.section(timeout=60)
def evaluate() -> float:
    model.eval()
    try:
        with torch.no_grad():
            total = model(torch.ones(2, 16)).sum().repeat(SUM_SIZE)
        dist.all_reduce(total)
        strike("section")
        dist.broadcast(total, 0)
        strike("end of section")
        return float(total[0])
    finally:
        model.train()


@run.section(timeout=60)
def compare(number: int) -> None:
    """Before a step: raises on whoever is somewhere else in the loop."""
    numbers = [torch.empty(1, dtype=torch.int64) for _ in range(run.world_size)]
    dist.all_gather(numbers, torch.tensor([number]))
    assert [int(each) for each in numbers] == [number] * run.world_size, numbers


def digests() -> dict[str, str]:
    def flat(state: object) -> list[bytes]:
        if isinstance(state, torch.Tensor):
            return [state.detach().contiguous().numpy().tobytes()]
        if isinstance(state, dict):
            return [part for key, item in state.items() for part in (repr(key).encode(), *flat(item))]
        if isinstance(state, list | tuple):
            return [part for item in state for part in flat(item)]
        return [repr(state).encode()]

    parts = {
        "weights": [parameter.detach() for parameter in model.parameters()],
        "buffers": list(model.buffers()),
        "optimizers": [adam.state_dict(), sgd.state_dict()],
        "extras": [scheduler.state_dict(), scaler.state_dict(), average.state_dict()],
    }
    return {name: hashlib.sha256(b"".join(flat(state))).hexdigest()[:16] for name, state in parts.items()}


note("started")
for step in run.steps(total=PLAN["steps"]):
    if step.number % EVALUATE_EVERY == 0:
        compare(step.number)
    loss = train(step)
    number = step.number
    assert loss is None or number in finished, f"step {number} came back without having been done"
    assert model.training
    note("outside", step=number, loss=None if loss is None else float(loss).hex(), **digests())
    strike("outside")
    run.log(loss=loss)
    if number % EVALUATE_EVERY == EVALUATE_EVERY - 1:
        score = evaluate()
        note("evaluated", step=number, score=None if score is None else score.hex())
note("final", **digests())
