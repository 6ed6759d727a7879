"""Putting a fault in, and being sure that it is taken back.

injector ── warden ── loads        the warden does the deed; a pipe ties it to the injector

Whoever of the two is killed, the other takes the fault back: the warden when its pipe ends, the injector when it finds
the warden dead. Loads are children of the warden and die with it.
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import msgspec

from holdfast.chaos.api import Effect, Fault, Memo, Target, Values
from holdfast.chaos.faults import FAULTS
from holdfast.errors import JobError, SpecError

APPLY_S = 60.0
"""For a fault to be in place; then it is taken back, and the injection has failed."""
UNDO_S = 60.0
"""For the warden to take a fault back; then it is killed, and the injector does it."""
LOOK_S = 0.1


class Order(msgspec.Struct, frozen=True):
    """What a warden is told."""

    fault: str
    target: Target
    parameters: dict[str, str]
    key: str
    memo: Memo
    for_s: float | None


class Answer(msgspec.Struct, frozen=True):
    """What a warden says of what it did, or why it could not."""

    did: str = ""
    error: str = ""


def inject(
    fault: str, target: Target, *, parameters: Mapping[str, str] | None = None, for_s: float | None = None
) -> Injection:
    """Strike; returns when the fault is in place. After `for_s` it is taken back by itself."""
    known = find_fault(fault)
    chosen = choose(known, parameters or {})
    if known.needs_root and os.geteuid() != 0:
        raise SpecError("FAULT", fault, f"it needs root; without root: {known.without_root}")
    if for_s is not None and not for_s >= 0:
        raise SpecError("--for", for_s, "it must be seconds, 0 or more")
    order = Order(fault, target, chosen, secrets.token_hex(4), {}, for_s)
    effect = make(order)
    if not known.undo:
        return Injection(known, target, effect.apply())
    order = msgspec.structs.replace(order, memo=effect.look())
    effect.memo = order.memo
    return _warded(known, order, effect)


def find_fault(name: str) -> Fault:
    if name not in FAULTS:
        raise SpecError("FAULT", name, f"it must be one of {', '.join(FAULTS)}")
    return FAULTS[name]


def choose(fault: Fault, given: Mapping[str, str]) -> dict[str, str]:
    """Every parameter of a fault, with its value."""
    for name in given:
        if name not in fault.parameters:
            valid = f"it must be one of {', '.join(fault.parameters)}" if fault.parameters else "it has none"
            raise SpecError(f"parameter of {fault.name}", name, valid)
    return {name: given.get(name, parameter.default) for name, parameter in fault.parameters.items()}


def make(order: Order) -> Effect:
    effect = FAULTS[order.fault].make(order.target, Values(order.parameters), key=order.key)
    effect.memo = order.memo
    return effect


class Injection:
    """A fault that is in place, until it is taken back."""

    def __init__(
        self,
        fault: Fault,
        target: Target,
        did: str,
        *,
        warden: subprocess.Popen[bytes] | None = None,
        effect: Effect | None = None,
    ) -> None:
        self.fault = fault
        self.target = target
        self.did = did
        self._warden = warden
        self._effect = effect

    @property
    def warden_pid(self) -> int | None:
        return None if self._warden is None else self._warden.pid

    def wait(self) -> None:
        """Until the fault is taken back by itself; at once for one that cannot be taken back."""
        if self._warden is not None:
            # Not for good: a signal that comes just before a blocking call would not be heard.
            while self._warden.poll() is None:
                time.sleep(LOOK_S)
            self.undo()

    def undo(self) -> None:
        warden, effect = self._warden, self._effect
        if warden is None or effect is None:
            return
        assert warden.stdin is not None, "asked for a pipe"
        assert warden.stdout is not None, "asked for a pipe"
        warden.stdin.close()
        try:
            code = warden.wait(UNDO_S)
        except subprocess.TimeoutExpired:
            warden.kill()
            code = warden.wait()
        warden.stdout.close()
        self._warden = None
        if code != 0:
            effect.undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def _warded(fault: Fault, order: Order, effect: Effect) -> Injection:
    warden = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.chaos.warden"],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    injection = Injection(fault, order.target, "", warden=warden, effect=effect)
    try:
        assert warden.stdin is not None, "asked for a pipe"
        warden.stdin.write(msgspec.json.encode(order) + b"\n")
        injection.did = _hear(warden, f"{fault.name} on {order.target.name}")
    except BaseException:  # whatever ends the wait, a fault that may be in place is taken back
        injection.undo()
        raise
    return injection


def _hear(warden: subprocess.Popen[bytes], what: str) -> str:
    """What was done; raises why it was not."""
    assert warden.stdout is not None, "asked for a pipe"
    deadline = time.monotonic() + APPLY_S
    heard = b""
    while not heard.endswith(b"\n"):
        if time.monotonic() >= deadline:
            raise JobError(f"{what}: it was not in place within {APPLY_S:g} s")
        if not select.select([warden.stdout], [], [], LOOK_S)[0]:
            continue
        if not (data := os.read(warden.stdout.fileno(), 1 << 16)):
            raise JobError(f"{what}: its warden ended with {warden.wait()}")
        heard += data
    answer = msgspec.json.decode(heard, type=Answer)
    if answer.error:
        raise JobError(f"{what}: {answer.error}")
    return answer.did
