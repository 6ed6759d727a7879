"""Faults inside the script of a worker that uses the SDK: it is told of them by a file, and strikes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from holdfast.chaos.api import Effect, Fault, Memo, Parameter
from holdfast.errors import JobError
from holdfast.observe import beacon
from holdfast.wire import orders

MOST_STEPS = 1 << 62


class Ordered(Effect):
    what: Literal["exception", "damage"]

    def prepare(self) -> None:
        step = self.values.text("step")
        self._step = self.values.whole("step", least=0, most=MOST_STEPS) if step else 0
        if len(self.target.processes) != 1:
            raise JobError(f"{self.target.name} is not one worker; the target must be one, as rank:1")

    def look(self) -> Memo:
        found = beacon_of(self.target.pids[0])
        if not found:
            raise JobError(
                f"{self.target.name} does not use the SDK, or has not called init() yet: it hears of nothing"
            )
        return {"beacon": found}

    def order(self) -> orders.Order:
        return orders.Order(self.what, self.key, self._step)

    def apply(self) -> str:
        sample = beacon.read(Path(self.memo["beacon"]))
        if sample is not None and sample.step >= self._step > 0:
            raise JobError(f"{self.target.name} is at step {sample.step}: step {self._step} is over")
        orders.place(self.memo["beacon"], self.order())
        when = f"at step {self._step}" if self._step else "at its next step"
        return f"{self.target.name} is told to {self.describe()}, {when}"

    def describe(self) -> str:
        raise NotImplementedError

    def undo(self) -> None:
        orders.withdraw(self.memo["beacon"], self.key)


class RaisedException(Ordered):
    what = "exception"

    def prepare(self) -> None:
        self._kind = self.values.choice("kind", "transient", "bug")
        super().prepare()

    def order(self) -> orders.Order:
        return orders.Order(self.what, self.key, self._step, transient=self._kind == "transient")

    def describe(self) -> str:
        return "raise an exception" if self._kind == "bug" else "raise an exception that is worth another try"


class DamagedTensor(Ordered):
    what = "damage"

    def prepare(self) -> None:
        self._told = self.values.choice("told", "yes", "no") == "yes"
        super().prepare()

    def order(self) -> orders.Order:
        tensor = self.values.text("tensor")
        return orders.Order(self.what, self.key, self._step, tensor=tensor, told=self._told)

    def describe(self) -> str:
        return f"overwrite {self.values.text('tensor') or 'its first tensor'} with NaN"


def beacon_of(pid: int) -> str:
    """The beacon that a worker has mapped; empty if it has none."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return ""
    paths = [line.split(maxsplit=5)[-1] for line in lines if "/beacon_" in line]
    return next((path for path in paths if Path(path).name.startswith("beacon_") and Path(path).is_file()), "")


STEP = {"step": Parameter("At which step; the next one without it.")}
WITHDRAWN = "an order that was not carried out is withdrawn"

FAMILY = (
    Fault(
        name="exception",
        summary="A worker raises an exception in a step (SDK only).",
        parameters={**STEP, "kind": Parameter("transient: worth another try; bug: the script's own.", "transient")},
        undo=WITHDRAWN,
        make=RaisedException,
    ),
    Fault(
        name="damaged-tensor",
        summary="A worker overwrites a protected tensor with NaN in a step (SDK only).",
        parameters={
            **STEP,
            "tensor": Parameter("Its name, as model.0.weight; the first one without it."),
            "told": Parameter("yes: the step fails for it, as if the machine had noticed; no: nobody is told.", "yes"),
        },
        undo=WITHDRAWN + "; the damage itself is the job's to repair",
        make=DamagedTensor,
    ),
)
