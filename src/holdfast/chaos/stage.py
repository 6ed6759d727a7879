"""One job under experiment, from its start to its last process; whatever is seen and done goes into the evidence."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.agent.processes import die_with_parent
from holdfast.chaos.evidence import Evidence, Row
from holdfast.chaos.experiment import Given, Scale, Strike
from holdfast.chaos.injection import Injection, inject
from holdfast.chaos.jobs import SubmittedJob
from holdfast.chaos.reference import SCRIPT
from holdfast.chaos.targets import find
from holdfast.errors import HoldfastError, JobError
from holdfast.spec.job_fields import BY_PATH
from holdfast.spec.runtime import RUNTIME_DIR, node_environment
from holdfast.spec.submit_merge import render
from holdfast.submission.client import RunningJob

MARK = "HOLDFAST_CHAOS"
"""Variable that every process of the job inherits."""
LOOK_S = 0.05
STOP_S = 60.0
"""For a job to end that was told to; then it is killed."""
GONE_S = 10.0
"""How long after the end of the job its processes may take to go; then they are orphans."""
MOST_OUTPUT = 20_000

Show = Callable[[float, str], None]
"""Told what happened, and when after the start."""


class Stage:
    def __init__(self, given: Given, *, show: Show, limit_s: float) -> None:
        self.evidence = Evidence()
        self._show = show
        self._scratch = Path(tempfile.mkdtemp(prefix="holdfast_"))
        self._mark = secrets.token_hex(8)
        self._injections: list[Injection] = []
        self._tails = [
            Tail(self._scratch / "events.jsonl", self._note_event),
            Tail(self._scratch / "records.jsonl", self.evidence.records.append),
        ]
        self._began_at = time.time()
        self._process = self._start(given, limit_s)

    def _start(self, given: Given, limit_s: float) -> subprocess.Popen[bytes]:
        runtime = self._scratch / "run"
        runtime.mkdir(mode=0o700)
        flags = [
            word
            for path, entry in given.job.items()
            for word in (BY_PATH[path].flag, entry.written if isinstance(entry.written, str) else render(entry.written))
        ]
        training = [str(SCRIPT), str(self._scratch / "records.jsonl"), "--pace-ms", f"{given.pace_ms:g}"]
        training += ["--limit-s", f"{limit_s:g}"]
        job = [sys.executable, "-P", "-m", "holdfast.cli.main", "submit", "--name", "chaos", *flags]
        with open(self._scratch / "output", "wb") as output:
            return subprocess.Popen(
                [*job, "--events", str(self._scratch / "events.jsonl"), "--", *training],
                env=node_environment({RUNTIME_DIR: str(runtime), MARK: self._mark}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )

    # --- looking ----------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Take in what is new; False once the job has ended."""
        is_running = self._process.poll() is None
        for tail in self._tails:
            tail.read()
        return is_running

    def wait_a_little(self) -> None:
        time.sleep(LOOK_S)

    def num_steps(self) -> int:
        """Steps that somebody has committed."""
        return max(
            (record["step"] + 1 for record in reversed(self.evidence.records[-64:]) if "step" in record), default=0
        )

    def nodes(self) -> list[Row]:
        """Nodes of the job, as it tells them; none while it does not answer."""
        try:
            found: list[Row] = self._job().ask("GET", "/nodes")
        except JobError:
            return []
        return found

    def output(self) -> str:
        return (self._scratch / "output").read_text(errors="replace")[-MOST_OUTPUT:]

    def elapsed_s(self) -> float:
        return time.time() - self._began_at

    def _job(self) -> RunningJob:
        sockets = list((self._scratch / "run").glob("*.sock"))
        if not sockets:
            raise JobError("the job cannot be asked: it has not begun, or has ended")
        return RunningJob(sockets[0].name.removesuffix(".sock"), sockets[0])

    def _note_event(self, event: Row) -> None:
        self.evidence.events.append(event)
        self._show(self.elapsed_s(), event["text"])

    # --- acting -----------------------------------------------------------------------------------------------

    def strike(self, strike: Strike, *, is_last_try: bool = True) -> bool:
        """Whether the fault could be put in; that it could not is told only of the last try."""
        try:
            target = find(SubmittedJob(self._job()), strike.target)
            injection = inject(strike.fault, target, parameters=strike.parameters, for_s=strike.for_s)
        except HoldfastError as error:
            if is_last_try:
                self._note("failed", f"{strike}: {error}")
            return False
        self.hold(injection)
        self._note("fault", f"{strike.fault} {strike.target}: {injection.did}")
        return True

    def hold(self, injection: Injection) -> None:
        """Have a fault taken back at the end."""
        self._injections.append(injection)

    def scale(self, scale: Scale) -> bool:
        try:
            self._job().ask("POST", "/scale", {"role": None, "nodes": scale.nodes, "slots": scale.slots})
        except JobError as error:
            self._note("failed", f"{scale}: {error}")
            return False
        self._note("scale", str(scale))
        return True

    def skip(self, text: str) -> None:
        """Note a fault that was due, and could not be put in."""
        self._note("skipped", text)

    def end(self) -> None:
        (self._scratch / "enough").touch()
        self._note("end", "the training may end")

    def stop(self, reason: str) -> None:
        """End a job that does not come to its end."""
        self._note("stop", reason)
        self._process.terminate()
        deadline = time.monotonic() + STOP_S
        while self.look() and time.monotonic() < deadline:
            self.wait_a_little()
        self._process.kill()

    def _note(self, what: str, text: str) -> None:
        self.evidence.actions.append({"at": time.time(), "what": what, "text": text})
        self._show(self.elapsed_s(), f">>> {text}")

    # --- the end ----------------------------------------------------------------------------------------------

    def conclude(self) -> Evidence:
        """Everything, once the job has ended and its faults are taken back."""
        code = self._process.wait()
        self.evidence.exit_code = code if code >= 0 else 128 - code
        deadline = time.monotonic() + GONE_S
        while (left := self._living()) and time.monotonic() < deadline:
            self.wait_a_little()
        self.evidence.leftovers = [f"{pid} {_command(pid)}" for pid in left]
        self.look()
        return self.evidence

    def _living(self) -> list[int]:
        needle = f"{MARK}={self._mark}".encode()
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in pids if needle in _read(f"/proc/{pid}/environ").split(b"\0")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Each of them, and then the end, whatever another one raises.
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_job)
            for injection in reversed(self._injections):
                stack.callback(injection.undo)

    def _end_job(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid in self._living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        shutil.rmtree(self._scratch, ignore_errors=True)


class Tail:
    """The lines of a file of JSON, as they come."""

    def __init__(self, path: Path, take: Callable[[Row], None]) -> None:
        self._path = path
        self._take = take
        self._read = 0

    def read(self) -> None:
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for line in whole.splitlines():
            self._take(json.loads(line))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
