"""Jobs under test: real launchers, watched through their events, their output and /proc, and always cleaned up.

Every process of a job inherits a variable with a mark of its own, so whatever a script leaves behind can be found,
in whichever session it hides.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

MARK = "HOLDFAST_TEST_MARK"
BIN = Path(sys.executable).parent
HOLDFAST = str(BIN / "holdfast")
TORCHRUN = str(BIN / "torchrun")
PYTHON = sys.executable

LAUNCHER_VARIABLES = (
    "PET_",
    "HOLDFAST_",
    "TORCHELASTIC_",
    "TORCH_ELASTIC_",
    "OMP_",
    "MASTER_",
    "PYTHON",
    "TASKD_",
    "MINDX_",
)
POLL_S = 0.005
START_S = 100.0
"""For a job to come up on a busy machine: torch may have to be read from disk."""
END_S = 60.0
GONE_S = 10.0
"""How long after a job's end nothing of it may be alive any more."""

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], *, within_s: float, what: str, tell: Callable[[], str] = str) -> Found:
    """The first thing `look` finds; after the deadline, fails with `what` was awaited and all that `tell` knows."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {within_s:g} s: {what}\n{tell()}")
        time.sleep(POLL_S)


def once_each(run: Callable[..., Found]) -> Callable[..., Found]:
    """Call `run` once for each set of arguments; where it failed, it is not tried again."""
    results: dict[tuple[object, ...], Found] = {}
    failures: dict[tuple[object, ...], BaseException] = {}

    def recall(*args: object) -> Found:
        if args in failures:
            raise AssertionError(f"failed before: {failures[args]}") from failures[args]
        if args not in results:
            try:
                results[args] = run(*args)
            except BaseException as error:  # the boundary to the job that several tests share
                failures[args] = error
                raise
        return results[args]

    return recall


# --- processes ------------------------------------------------------------------------------------------------


def marked(mark: str) -> list[int]:
    """Every live process that carries the mark; a zombie has no environment any more."""
    needle = f"{MARK}={mark}\0".encode()
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    return [pid for pid in pids if needle in _read(f"/proc/{pid}/environ")]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def cmdline(pid: int) -> list[str]:
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").rstrip("\0").split("\0")


def is_alive(pid: int) -> bool:
    return _state(pid) not in ("", "Z", "X")


def _state(pid: int) -> str:
    fields = _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()
    return fields[0] if fields else ""


def is_stopped(pid: int) -> bool:
    return _state(pid) == "T"


def parent(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def describe(pids: Sequence[int]) -> str:
    return "\n".join(f"  {pid} (parent {parent(pid)}, state {_state(pid)}): {' '.join(cmdline(pid))}" for pid in pids)


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; False if the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def listening_ports(pid: int) -> list[int]:
    """TCP ports on which this process listens."""
    links = []
    for fd in _list(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    ports = []
    for line in _read(f"/proc/{pid}/net/tcp").decode().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def free_port() -> int:
    """A port that nobody uses now, and that the kernel gives to nobody who does not name it.

    Tests that run at the same time draw from ports that are apart.
    """
    low = int(_read("/proc/sys/net/ipv4/ip_local_port_range").split()[0])
    run, worker = os.getppid(), int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % MAX_WORKERS
    first = 10_000 + run % (low // MAX_WORKERS - 1_000) * MAX_WORKERS + worker
    for port in range(first, low, MAX_WORKERS):
        with socket.socket() as probe:
            if port not in _handed_out and probe.connect_ex(("127.0.0.1", port)) != 0:
                _handed_out.add(port)
                return port
    raise AssertionError("no port is free")


_handed_out: set[int] = set()
MAX_WORKERS = 16


def stream(port: int, *, after: int = 0, quiet_s: float = 20.0) -> Iterator[dict[str, Any]]:
    """The story of a job as its master tells it on this port, until it ends; fails when nothing comes for so long."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/events", headers={"Last-Event-ID": str(after)})
    with urllib.request.urlopen(request, timeout=quiet_s) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


# --- jobs -----------------------------------------------------------------------------------------------------


def clean_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without anything that a launcher would read."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return {**env, **(extra or {})}


@dataclass
class Job:
    """One started launcher, or one node of a job."""

    process: subprocess.Popen[bytes]
    mark: str
    directory: Path
    events_file: Path
    tool: str = "holdfast"

    @property
    def out(self) -> str:
        return (self.directory / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.directory / "err").read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self.process.pid

    # --- waiting ----------------------------------------------------------------------------------------------

    def wait(self, *, within_s: float = END_S) -> int:
        """The exit code of the launcher as a shell would show it."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher has not ended within {within_s:g} s\n{self.story()}") from None
        return code if code >= 0 else 128 - code

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        if not self.events_file.exists():
            return []
        whole, _, _ = self.events_file.read_text().rpartition("\n")
        entries = [json.loads(line) for line in whole.splitlines()]
        return [entry for entry in entries if kind in (None, entry["kind"])]

    def wait_for(self, kind: str, *, within_s: float = START_S, **fields: object) -> dict[str, Any]:
        """The first event of this kind whose fields have these values."""

        def look() -> dict[str, Any] | None:
            has_ended = self._has_ended()
            for entry in self.events(kind):
                if all(entry.get(name) == value for name, value in fields.items()):
                    return entry
            assert not has_ended, self._end_before(f"{kind} {fields or ''}")
            return None

        return until(look, within_s=within_s, what=f"{kind} {fields or ''} in the events", tell=self.story)

    def wait_for_output(self, text: str, *, times: int = 1, within_s: float = START_S) -> None:
        def look() -> bool:
            has_ended = self._has_ended()
            if (self.out + self.err).count(text) >= times:
                return True
            assert not has_ended, self._end_before(f"{text!r} {times} times in the output")
            return False

        until(look, within_s=within_s, what=f"{text!r} {times} times in the output", tell=self.story)

    def _has_ended(self) -> bool:
        """Asked before each look: the last lines may be written between a look and the end."""
        return self.process.poll() is not None and not marked(self.mark)

    def _end_before(self, awaited: str) -> str:
        tail = self.out + self.err
        return f"ended with {self.process.returncode} before {awaited} came\n{tail[-4000:]}"

    def wait_for_workers(self, generation: int = 1, *, within_s: float = START_S) -> dict[int, int]:
        """Rank to process id, once the generation runs on a node."""
        pids = self.wait_for("workers_started", generation=generation, within_s=within_s)["pids"]
        return {int(rank): pid for rank, pid in pids.items()}

    def story(self) -> str:
        survivors = describe(marked(self.mark))
        return f"out:\n{self.out[-3000:]}\nerr:\n{self.err[-3000:]}\nprocesses:\n{survivors}"

    # --- its processes ----------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        return marked(self.mark)

    def find(self, role: str) -> int | None:
        """A process of the launcher by its role: guard, agent, interpreter, master, store or worker."""
        if role == "guard":
            return self.pid
        agents = [pid for pid in self.processes() if parent(pid) == self.pid]
        if role == "agent" or not agents:
            return agents[0] if agents else None
        if role == "worker":
            started = self.events("workers_started")
            pids = started[-1]["pids"].values() if started else ()
            return next(filter(is_alive, pids), None)
        below = [pid for pid in self.processes() if parent(pid) == agents[0]]
        if role == "master":
            return next((pid for pid in below if "holdfast.master.main" in cmdline(pid)), None)
        if role == "interpreter":
            return next((pid for pid in below if _is_warm(pid) and not _is_store(pid)), None)
        assert role == "store", f"no such role: {role}"
        # A store outlives its interpreter and is then a child of the agent.
        return next((pid for pid in self.processes() if pid != agents[0] and _is_store(pid)), None)

    def wait_for_process(self, role: str, *, within_s: float = START_S) -> int:
        what = f"a process in the role {role}"
        return until(lambda: self.find(role), within_s=within_s, what=what, tell=self.story)

    def expect_nothing_left(self, *, within_s: float = GONE_S) -> None:
        """The job has ended: no process of it is alive, or dies within a moment."""
        until(lambda: not marked(self.mark), within_s=within_s, what="nothing left alive", tell=self.story)

    def destroy(self) -> None:
        """Kill whatever is left; each round finds what was forked meanwhile."""
        while survivors := marked(self.mark):
            for pid in survivors:
                kill(pid)
            self.process.poll()
        self.process.wait()


@contextlib.contextmanager
def cleaned_up() -> Iterator[list[Job]]:
    """A list for jobs: whatever of them lives at the end is killed, and one that has ended must have left nothing."""
    jobs: list[Job] = []
    try:
        yield jobs
        for job in jobs:
            if job.process.poll() is not None:
                job.expect_nothing_left()
    finally:
        for job in jobs:
            job.destroy()


StartJob = Callable[..., Job]
"""The fixture that starts `holdfast run` with some arguments."""


def _is_warm(pid: int) -> bool:
    return any(arg.endswith("/warm.py") for arg in cmdline(pid))


def _is_store(pid: int) -> bool:
    return "holdfast.agent.store" in cmdline(pid) or (_is_warm(pid) and bool(listening_ports(pid)))


def start(
    command: Sequence[str],
    *,
    directory: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | None = subprocess.DEVNULL,
) -> Job:
    """Start a launcher in the background, with its output in files."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    events = directory / "events.jsonl"
    if command[0] == HOLDFAST and "--events" not in command:
        command = [command[0], command[1], "--events", str(events), *command[2:]]
    with open(directory / "out", "wb") as out, open(directory / "err", "wb") as err:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=out,
            stderr=err,
            cwd=cwd or directory,
            env=clean_env(env) | {MARK: mark},
            start_new_session=True,
        )
    return Job(process, mark, directory, events, tool=Path(command[0]).name)


def run_in_vain(command: Sequence[str], *, directory: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """How a command that cannot start anything ends; nothing of it is left."""
    mark = str(directory)
    done = subprocess.run(
        command,
        cwd=directory,
        env=clean_env(env) | {MARK: mark},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert not marked(mark), "something is left running"
    return done
