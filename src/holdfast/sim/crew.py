"""The processes of one agent: they start after a while, work, end by themselves or by a signal, and are swept."""

from __future__ import annotations

import signal
from collections.abc import Callable

from holdfast.core import workers as core
from holdfast.sim.fleet import Process
from holdfast.sim.stage import Stage

KILL_SHARE = 0.04
"""Killing takes at most this share of a lease: `fence_s` leaves that much and more before a node is replaced."""

ENDS: tuple[tuple[int | None, int | None, str], ...] = (
    (1, None, "Traceback (most recent call last):\n  line\nValueError: made up"),
    (3, None, ""),
    (None, signal.SIGKILL, ""),
    (None, signal.SIGSEGV, ""),
)
"""How a worker fails by itself: exit code, signal, what it leaves behind."""


class Crew:
    """What the shell of an agent does to processes, and what it sees of them."""

    def __init__(self, stage: Stage, node: str, tell: Callable[[core.Event], None]) -> None:
        self.fail_next_launch = False
        self.sticky_sweep_s = 0.0
        """How much longer the next sweep takes: something that the workers started does not die at once."""
        self._stage = stage
        self._node = node
        self._tell = tell
        self._processes: list[Process] = []
        self._launch_number = 0
        self._complete = True
        self._early: list[core.WorkerExited] = []
        self._dead = False

    def live(self) -> list[Process]:
        return [process for process in self._processes if process.alive]

    def launch(self, launch: core.Launch) -> None:
        rng, timeline = self._stage.rng, self._stage.timeline
        self._launch_number += 1
        self._complete, self._early = False, []
        number, generation = self._launch_number, launch.world.generation
        if self.fail_next_launch:
            self.fail_next_launch = False
            failed = core.LaunchFailed(generation, "launch: No space left on device")
            timeline.after(rng.uniform(0.0, 0.2), lambda: self._tell_if(number, failed))
            return
        fork_s = rng.choice((0.0, rng.uniform(0.001, 0.3)))
        timeline.after(fork_s, lambda: self._fork(number, launch))

    def forward(self, number: int) -> None:
        for process in self.live():
            if not process.stubborn:
                # Some use the grace they are given, to write a checkpoint.
                most_s = 0.2 if self._stage.rng.random() < 0.8 else 2 * self._stage.setup.shutdown_s
                delay_s = self._stage.rng.uniform(0.001, most_s)
                code = self._stage.rng.choice((None, None, 0, 128 + number))
                self._end_later(process, delay_s, code, number if code is None else None)

    def sweep(self) -> None:
        """Kill all that live, soon; say so then, or later when the sweep is a sticky one."""
        self._launch_number += 1
        kill_s = self._stage.rng.uniform(0.001, KILL_SHARE * self._stage.setup.rules.lease_s)
        sticky_s, self.sticky_sweep_s = self.sticky_sweep_s, 0.0
        self._stage.timeline.after(kill_s, self._kill)
        self._stage.timeline.after(kill_s + sticky_s + 0.001, lambda: self._tell_if(None, core.Swept()))

    def fail(self, process: Process) -> None:
        """Let a worker fail by itself."""
        code, number, error = self._stage.rng.choice(ENDS)
        self._end(process, code, number, error)

    def die(self) -> None:
        """The agent is gone, and its workers with it."""
        self._dead = True
        for process in self.live():
            self._stage.fleet.end(process, clean=False)

    # --- the life of a process --------------------------------------------------------------------------------

    def _fork(self, number: int, launch: core.Launch) -> None:
        if self._dead or number != self._launch_number:
            return
        stage, placement = self._stage, launch.placement
        self._processes = [
            self._start(launch.world.generation, placement.first_rank + local_rank, local_rank)
            for local_rank in range(placement.num_workers)
        ]
        launched = [core.WorkerStarted(each.local_rank, each.pid) for each in self._processes]
        stage.timeline.after(stage.rng.uniform(0.0, 0.05), lambda: self._complete_launch(number, launched))

    def _start(self, generation: int, rank: int, local_rank: int) -> Process:
        stage = self._stage
        pid = stage.fleet.next_pid()
        process = Process(self._node, generation, rank, local_rank, pid, lambda: self._lose_peer(process))
        process.stubborn = stage.rng.random() < 0.03
        stage.fleet.start(process)
        if stage.fleet.is_broken(generation):
            self._lose_peer(process)
        work_s = stage.setup.work_s * stage.rng.uniform(0.9, 1.1)
        stage.timeline.after(work_s, lambda: self._succeed(process))
        return process

    def _complete_launch(self, number: int, launched: list[core.WorkerStarted]) -> None:
        if self._dead or number != self._launch_number:
            return
        self._complete = True
        for started in launched:
            self._tell(started)
        early, self._early = self._early, []
        for exited in early:
            self._tell(exited)

    def _succeed(self, process: Process) -> None:
        # Whoever lost a peer waits for it in a collective that never ends.
        if not self._stage.fleet.is_broken(process.generation):
            self._end(process, 0, None)

    def _lose_peer(self, process: Process) -> None:
        if self._stage.rng.random() < 0.3:
            error = "RuntimeError: [gloo/transport/tcp] Connection closed by peer"
            self._end_later(process, self._stage.rng.uniform(0.001, 0.5), 1, None, error)

    def _kill(self) -> None:
        for process in self.live():
            self._end(process, None, signal.SIGKILL)

    def _end_later(
        self, process: Process, delay_s: float, code: int | None, number: int | None, error: str = ""
    ) -> None:
        self._stage.timeline.after(delay_s, lambda: self._end(process, code, number, error))

    def _end(self, process: Process, code: int | None, number: int | None, error: str = "") -> None:
        if self._dead or not process.alive:
            return
        self._stage.fleet.end(process, clean=code == 0)
        exited = core.WorkerExited(process.local_rank, process.pid, code, number, error)
        if self._complete:
            self._tell(exited)
        else:
            self._early.append(exited)

    def _tell_if(self, number: int | None, event: core.Event) -> None:
        if not self._dead and number in (None, self._launch_number):
            self._tell(event)
