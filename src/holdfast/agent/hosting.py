"""The master on this node: started, and started again from its journal when it dies.

The agent keeps the listening socket, so the port is never lost: while there is no master, those who dial wait in
the socket's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core.budget import Budget
from holdfast.core.election import Candidacy
from holdfast.errors import JobError, NotElected
from holdfast.spec.job import JobRules
from holdfast.wire.messages import Moved
from holdfast.wire.tls import Credentials

MAX_REVIVALS = 10
REVIVAL_WINDOW_S = 60.0


class HostedMaster:
    """One master process after another, on one socket and one journal."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        rules: JobRules,
        journal: Path,
        sole_nonce: str | None,
        token: str | None,
        tls: Credentials | None,
        client_tls: Credentials | None,
        node: str,
        nonce: str,
        candidacy: Candidacy | None = None,
        on_death: Callable[[str], None],
        on_ruin: Callable[[JobError], None],
    ) -> None:
        self._listener = listener
        self._settings = {
            "rules": msgspec.to_builtins(rules),
            "journal": str(journal),
            "sole_nonce": sole_nonce,
            "token": token,
            "tls": None if tls is None else msgspec.to_builtins(tls),
            "client_tls": None if client_tls is None else msgspec.to_builtins(client_tls),
            "host": node,
            "id": nonce,
            "candidacy": None if candidacy is None else msgspec.to_builtins(candidacy),
        }
        self._on_death = on_death
        self._on_ruin = on_ruin
        self._gone = asyncio.Event()
        self._budget = Budget(MAX_REVIVALS, window_s=REVIVAL_WINDOW_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_succeeded = False
        self._is_stuck = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self, understudy: subprocess.Popen[bytes] | None = None) -> None:
        """Start a master, or have one begin that was prepared on the same socket."""
        fd = self._listener.fileno()
        process = understudy or prepare_master(self._listener)
        assert process.stdin is not None, "asked for a pipe"
        # One that is killed before it has read this is started again, as one that is killed later.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode({**self._settings, "listen_fd": fd}) + b"\n")
        self._process = process
        watch_exit(process.pid, lambda: self._note_death(process))

    def revive(self) -> None:
        """Kill a master that does not answer; its death starts the next one."""
        if self._process is not None:
            self._is_stuck = True
            self._process.kill()

    def send_on(self, successor: Moved) -> None:
        """What is here only tells where the master is now; should it die, so does the next one."""
        self._settings["successor"] = msgspec.to_builtins(successor)
        self._is_succeeded = True

    def withdraw(self) -> None:
        """End the master, and start it no more."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    async def wait_until_gone(self, *, within_s: float) -> None:
        """Let the master tell others that the job has ended; then end it."""
        process = self._process
        self._process = None
        if process is None:
            return
        if within_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), within_s)
        process.kill()
        process.wait()
        assert process.stdin is not None, "asked for a pipe"
        process.stdin.close()

    def _note_death(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if process.returncode == NotElected.exit_code:
            self._process = None
        if process is not self._process:
            self._gone.set()
            return
        # Whoever is killed for its silence has not failed: the machine may be slow.
        has_budget = self._is_stuck or self._budget.spend(now=asyncio.get_running_loop().time())
        self._is_stuck = False
        if self._is_succeeded:
            # The job does not need it: newcomers do.
            if has_budget:
                self.start()
            return
        if not has_budget:
            text = f"the master died {MAX_REVIVALS} times within {REVIVAL_WINDOW_S:g} s; see its messages above"
            self._on_ruin(JobError(text))
            return
        code = process.returncode
        self._on_death(f"by signal {-code}" if code < 0 else f"with exit code {code}")
        self.start()


def prepare_master(listener: socket.socket) -> subprocess.Popen[bytes]:
    """A master process that waits for its settings."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.master.main"],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=2,
        pass_fds=(listener.fileno(),),
        start_new_session=True,
    )


def watch_exit(pid: int, callback: Callable[[], None]) -> None:
    """Call back once when `pid`, a child or not, has ended."""
    loop = asyncio.get_running_loop()
    fd = os.pidfd_open(pid)

    def ended() -> None:
        loop.remove_reader(fd)
        os.close(fd)
        callback()

    loop.add_reader(fd, ended)
