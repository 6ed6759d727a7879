"""The wall clock jumps, for the target alone: the machine's clock stays as it is."""

from __future__ import annotations

from holdfast.chaos import vdso
from holdfast.chaos.api import Effect, Fault, Parameter
from holdfast.chaos.pids import struck
from holdfast.errors import JobError

MOST_S = 100 * 365 * 86_400


class ClockJump(Effect):
    def prepare(self) -> None:
        self._seconds = int(self.values.number("seconds", least=-MOST_S, most=MOST_S))
        if reason := vdso.obstacle():
            raise JobError(f"no clock can be made to jump here: {reason}")

    def apply(self) -> str:
        living = struck(self.target)
        if not living:
            raise JobError(f"{self.target.name} is gone already")
        for process in living:
            vdso.jump(process, self._seconds)
        return f"the wall clock of {len(living)} processes of {self.target.name} is wrong by {self._seconds:+d} s"

    def undo(self) -> None:
        for process in struck(self.target):
            if vdso.is_wrong(process):
                vdso.set_right(process)


FAMILY = (
    Fault(
        name="clock-jump",
        summary="The wall clock of the target's processes, and of those they fork, jumps; programs they execute have "
        "the right one. Needs the right to trace them, and x86-64.",
        parameters={"seconds": Parameter("By how much; below 0: into the past.", "3600")},
        undo="the clock jumps back",
        make=ClockJump,
    ),
)
