"""One job of the workload under one launcher: start it, watch it step, disturb it, end it."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from processes import descendants, end, pss_bytes, snapshot, uninterrupted
from records import Attempt, Record, StepReader, read_attempts

WORKLOAD = Path(__file__).with_name("workload.py")
SDK_WORKLOAD = Path(__file__).with_name("sdk_workload.py")
NUM_WORKERS = 4
MAX_RESTARTS = 3
POLL_S = 0.01
START_S = 120.0
"""From the launch to the first step of all ranks; far above any healthy start."""
STOP_S = 15.0
"""From SIGTERM to SIGKILL for a launcher; enough to end its workers in order."""


class JobFailed(Exception):
    """A job ended or got stuck where the benchmark needs it alive."""


@dataclass(frozen=True)
class Launcher:
    """A command that understands torchrun's flags, and the script it runs."""

    command: tuple[str, ...]
    """Here and in `flags`, `{folder}` stands for the job's folder."""
    flags: tuple[str, ...] = ()
    """Flags of its own."""
    script: Path = WORKLOAD
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(tuple(shlex.split(text)))

    def with_(self, *, flags: Sequence[str] = (), arguments: Sequence[str] = ()) -> Self:
        """This launcher with more flags, or more arguments for the script."""
        return replace(self, flags=(*self.flags, *flags), arguments=(*self.arguments, *arguments))

    @property
    def name(self) -> str:
        """The command without `env` and its assignments."""
        return " ".join(Path(word).name for word in self.command if word != "env" and "=" not in word)

    def command_line(self, folder: Path, options: list[str]) -> list[str]:
        flags = [
            "--standalone",
            f"--nproc-per-node={NUM_WORKERS}",
            f"--max-restarts={MAX_RESTARTS}",
        ]
        own = [flag.format(folder=folder) for flag in self.flags]
        command = [word.replace("{folder}", str(folder)) for word in self.command]
        return [*command, *flags, *own, str(self.script), str(folder), *self.arguments, *options]


class Job:
    """Runs from `with` to the end of the block, however the block ends."""

    def __init__(self, launcher: Launcher, *, checkpoint_every: int = 0, gate: int = 0) -> None:
        self.launcher = launcher
        self._gate = gate
        self._options = [f"--checkpoint-every={checkpoint_every}", f"--gate={gate}"]
        self._turns_released = 0
        self.signalled_at: float | None = None

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(prefix="holdfast-bench-")
        self.folder = Path(self._scratch.name)
        self._readers = [StepReader(self.folder / f"steps-{rank}") for rank in range(NUM_WORKERS)]
        self._gates = [self._open_gate(rank) for rank in range(NUM_WORKERS)] if self._gate else []
        self._output = (self.folder / "output").open("wb")
        # Beside this interpreter are the launchers that belong to it.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.launched_at = monotonic()
        try:
            self._process = subprocess.Popen(
                self.launcher.command_line(self.folder, self._options),
                env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach the benchmark alone, which then ends the job in order.
                start_new_session=True,
            )
        except OSError as error:
            raise JobFailed(f"could not be started: {error}") from error
        return self

    def _open_gate(self, rank: int) -> int:
        path = self.folder / f"gate-{rank}"
        os.mkfifo(path)
        # Opened for reading too, or opening would wait for the worker.
        return os.open(path, os.O_RDWR)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with uninterrupted():
            processes = descendants([self._process.pid], snapshot())
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_S)
            end(processes)
            self._process.kill()
            self._process.wait()
            for gate in self._gates:
                os.close(gate)
            self._output.close()
            self._scratch.cleanup()

    def steps(self) -> list[list[Record]]:
        """The records of every rank so far, by rank."""
        return [reader.poll() for reader in self._readers]

    def wait_until(self, condition: Callable[[], bool], *, what: str, timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        while not condition():
            if self._process.poll() is not None:
                raise JobFailed(f"ended with {self._process.returncode} before {what}{self._tail()}")
            if monotonic() > deadline:
                raise JobFailed(f"waited {timeout_s:.0f} s in vain for {what}{self._tail()}")
            sleep(POLL_S)

    def wait_for_step(self, step: int, *, timeout_s: float = START_S) -> None:
        """Until every rank has done `step`, in whichever incarnation."""

        def reached() -> bool:
            return all(records and records[-1].step >= step for records in self.steps())

        self.wait_until(reached, what=f"step {step}", timeout_s=timeout_s)

    def worker_pids(self) -> list[int]:
        return [int((self.folder / f"pid-{rank}").read_text()) for rank in range(NUM_WORKERS)]

    def kill_worker(self, rank: int) -> tuple[int, float]:
        """SIGKILL, without warning; returns the pid and when."""
        return self.signal_worker(rank, signal.SIGKILL)

    def signal_worker(self, rank: int, number: signal.Signals) -> tuple[int, float]:
        pid = self.worker_pids()[rank]
        sent_at = monotonic()
        os.kill(pid, number)
        self.signalled_at = sent_at
        return pid, sent_at

    def wait_for_end(self, *, timeout_s: float) -> None:
        """Until the launcher has ended with 0."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=timeout_s)
        if self._process.returncode != 0:
            code = self._process.returncode
            outcome = f"did not end within {timeout_s:.0f} s" if code is None else f"ended with {code}"
            raise JobFailed(f"{outcome}{self._tail()}")

    def attempts(self) -> list[list[Attempt]]:
        """Every step that was begun, by rank; for a job that has ended."""
        return [read_attempts(self.folder / f"attempts-{rank}") for rank in range(NUM_WORKERS)]

    def weights(self) -> list[str]:
        """A digest of the final weights, by rank; for a job that has ended."""
        return [(self.folder / f"weights-{rank}").read_text() for rank in range(NUM_WORKERS)]

    def release(self, turns: int) -> None:
        """Let the gated workers have this many turns more, each of `gate` steps."""
        self._turns_released += turns
        for gate in self._gates:
            os.write(gate, b"." * turns)

    def run_turn(self) -> list[list[Record]]:
        """One turn of the gated workers; returns its records by rank."""
        self.release(1)
        self.wait_for_step(self._turns_released * self._gate)
        return [records[-self._gate :] for records in self.steps()]

    def pss_bytes(self) -> int:
        """Memory of launcher and workers. Another job would share pages and distort it."""
        return pss_bytes(self._pids_alone())

    def launcher_cpu_s(self) -> float:
        """CPU time so far of all processes but the workers and what they started."""
        processes = snapshot()
        workers = self.worker_pids()
        theirs = {*workers, *descendants(workers, processes)}
        ours = [pid for pid in self._pids_alone() if pid not in theirs]
        return sum(processes[pid].cpu_s for pid in ours if pid in processes)

    def _pids_alone(self) -> list[int]:
        """All processes of the only job there is, also those that left its tree."""
        return descendants([os.getpid()], snapshot())

    def _tail(self) -> str:
        lines = (self.folder / "output").read_text(errors="replace").splitlines()[-15:]
        return "".join(f"\n  | {line}" for line in lines)
