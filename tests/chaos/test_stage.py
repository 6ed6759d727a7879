"""What becomes of a job and its faults when a stage is left."""

from __future__ import annotations

import contextlib
import subprocess

import pytest

from holdfast.chaos.api import Effect, Target, Values
from holdfast.chaos.experiment_file import load_experiment
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.injection import Injection
from holdfast.chaos.stage import Stage
from holdfast.errors import JobError


class Stubborn(Effect):
    """It cannot be taken back."""

    num_tries = 0

    def undo(self) -> None:
        self.num_tries += 1
        raise JobError("it cannot be taken back")


def without_warden(effect: Effect) -> Injection:
    """What is left of one whose warden is dead."""
    dead = subprocess.Popen(["false"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return Injection(FAULTS["stop"], effect.target, "done", warden=dead, effect=effect)


@pytest.mark.usefixtures("mark")
def test_a_fault_that_cannot_be_taken_back_keeps_neither_others_nor_the_job() -> None:
    effects = [Stubborn(Target(name="nobody"), Values({}), key=key) for key in "ab"]
    given = load_experiment("hang", size="small").given
    stage = Stage(given, show=lambda _at, _text: None, limit_s=60.0)
    leaving = contextlib.ExitStack()
    leaving.enter_context(stage)
    for effect in effects:
        stage.hold(without_warden(effect))
    assert stage.look()
    with pytest.raises(JobError, match="it cannot be taken back"):
        leaving.close()
    assert [effect.num_tries for effect in effects] == [1, 1]
    assert not stage.look()
