"""The probe of this node: started for a check, told of its tests, heard, and ended when its time is up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.agent import requests
from holdfast.agent.hangs import kill_worker
from holdfast.agent.interpreter import Died, Interpreter
from holdfast.agent.interpreter import Event as InterpreterEvent
from holdfast.agent.probe import PAIR_S
from holdfast.core import workers as core
from holdfast.core.faults import signal_name
from holdfast.core.health.results import CheckResult
from holdfast.core.ids import Check

ALONE_S = 60.0
"""From the start of a probe to the end of its own part: importing torch may be in it. Then it is killed, and the check
has failed here."""
TESTS_S = 30.0 + 3 * PAIR_S
"""The same from when it is told of its tests. More than all tests of a group take together: what a partner is to blame
for is told before."""
READ_BYTES = 1 << 16


@dataclass(slots=True)
class Probing:
    """One probe, from the request to its end."""

    check: Check
    results: int
    tests: int
    pid: int = 0
    heard: bytes = b""
    timer: asyncio.TimerHandle | None = None
    told: list[CheckResult] = field(default_factory=list)


class Prober:
    """At most one probe at a time: a newer check ends an older one."""

    def __init__(
        self,
        *,
        num_threads: int,
        interpreter: Interpreter,
        store: socket.socket,
        put: Callable[[core.Event], None],
        alone_s: float = ALONE_S,
    ) -> None:
        self._alone_s = alone_s
        self._num_threads = num_threads
        self._interpreter = interpreter
        self._store = store
        self._put = put
        self._current: Probing | None = None
        self._waiting: asyncio.Task[None] | None = None

    def probe(self, check: Check) -> None:
        """Do what a check asks for, as soon as the interpreter is warm."""
        running = self._current
        if running is not None and check.tests and running.check.key[:2] == check.key[:2] and not running.check.tests:
            self._tell_tests(running, check)
            return
        self.cancel()
        self._waiting = asyncio.create_task(self._start(check))

    def cancel(self) -> None:
        """End the probe, if there is one; nobody waits for its result."""
        if self._waiting is not None:
            self._waiting.cancel()
        if self._current is not None:
            self._drop(self._current)

    async def _start(self, check: Check) -> None:
        await self._interpreter.ready.wait()
        results, results_writer = os.pipe()
        tests_reader, tests = os.pipe()
        os.set_blocking(results, False)
        probing = self._current = Probing(check, results, tests)
        request = requests.Probe(check.check_id, check.round, check.address, self._num_threads)
        self._interpreter.probe(request, [self._store.fileno(), results_writer, tests_reader])
        os.close(results_writer)
        os.close(tests_reader)
        asyncio.get_running_loop().add_reader(results, self._hear, probing)
        self._set_timer(probing)
        if check.tests:
            self._tell_tests(probing, check)

    def _tell_tests(self, probing: Probing, check: Check) -> None:
        probing.check = check
        self._set_timer(probing)
        with contextlib.suppress(BrokenPipeError):
            os.write(probing.tests, msgspec.json.encode(check.tests))

    def _set_timer(self, probing: Probing) -> None:
        if probing.timer is not None:
            probing.timer.cancel()
        limit_s = TESTS_S if probing.check.tests else self._alone_s
        probing.timer = asyncio.get_running_loop().call_later(limit_s, self._expire, probing, limit_s)

    # --- what happens to it -----------------------------------------------------------------------------------

    def on_interpreter(self, event: InterpreterEvent) -> None:
        probing = self._current
        match event:
            case requests.ProbeStarted():
                if probing is not None and probing.check.key[:2] == (event.check_id, event.round):
                    probing.pid = event.pid
                else:
                    kill_worker(event.pid)
            case requests.ProbeExited():
                if probing is not None and probing.pid == event.pid:
                    ended = f"was killed by {signal_name(-event.code)}" if event.code < 0 else "ended without a result"
                    self._end(probing, ended)
            case Died():
                if probing is not None:
                    self._end(probing, f"was lost: the warm interpreter ended {event.reason}")
            case _:
                pass

    def _hear(self, probing: Probing) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(probing.results, READ_BYTES):
                probing.heard += data
            # It has ended, and the interpreter will say how.
            asyncio.get_running_loop().remove_reader(probing.results)
        *lines, probing.heard = probing.heard.split(b"\n")
        for line in lines:
            result = msgspec.json.decode(line, type=CheckResult)
            probing.told.append(result)
            self._put(core.Probed(result))
        if probing.told and probing.told[-1].is_whole:
            self._drop(probing)

    def _expire(self, probing: Probing, limit_s: float) -> None:
        self._end(probing, f"did not get on within {limit_s:g} s")

    def _end(self, probing: Probing, how: str) -> None:
        """It is gone: what it did not tell is told for it."""
        self._hear(probing)
        if self._current is not probing:
            return
        check_id, number, _ = probing.check.key
        own = probing.told[-1] if probing.told else CheckResult(check_id, number)
        self._drop(probing)
        self._put(core.Probed(replace(own, error=f"the probe {how}", is_whole=True)))

    def _drop(self, probing: Probing) -> None:
        if self._current is not probing:
            return
        self._current = None
        if probing.timer is not None:
            probing.timer.cancel()
        asyncio.get_running_loop().remove_reader(probing.results)
        os.close(probing.results)
        os.close(probing.tests)
        if probing.pid:
            kill_worker(probing.pid)
