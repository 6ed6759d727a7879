"""The same training as workload.py, written with the SDK: no checkpoints, guarded steps.

Leaves the same traces. A standby also leaves `standby-PID` when it is about to wait at its loop.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import task
import torch
import torch.nn.functional as F

import holdfast
from holdfast.faults import MemoryDamaged

if TYPE_CHECKING:
    from holdfast.sdk.session import Step

DAMAGED_RANK = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--checkpoint-every", type=int, default=0, help="accepted: there are none")
    parser.add_argument("--gate", type=int, default=0, metavar="STEPS", help="length of a turn")
    parser.add_argument("--large", action="store_true", help="the large model")
    parser.add_argument("--damage-at", type=int, default=0, metavar="STEP")
    args = parser.parse_args()

    run = holdfast.init()
    model, optimizer = task.build(large=args.large)
    data = run.data(task.samples(), global_batch=task.global_batch(large=args.large))
    run.protect(model=model, optimizer=optimizer, data=data)
    network = run.data_parallel(model)
    if run.rank < 0:
        task.write_whole(args.folder / f"standby-{os.getpid()}", "")
    trace: task.Trace | None = None
    damage_at = args.damage_at

    @run.step
    def train(step: Step) -> None:
        nonlocal damage_at
        assert trace is not None, "the loop opens it before the first step"
        images, labels, ids = step.batch()
        trace.began(step.number + 1, ids)
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        if step.number + 1 == damage_at and run.rank == DAMAGED_RANK:
            damage_at = 0
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))
            raise MemoryDamaged("by the benchmark", tensors=["model.0.weight"])
        loss.backward()
        optimizer.step()

    for step in run.steps(total=args.steps):
        # Not above: a standby has no rank until it enters the loop.
        if trace is None:
            trace = task.Trace(args.folder, run.rank)
            gate = task.Gate(args.folder, run.rank, every=args.gate)
        if gate.is_shut(step.number + 1):
            break
        train(step)
        trace.finished(step.number + 1)
    if trace is not None:
        trace.ended(model)


if __name__ == "__main__":
    main()
