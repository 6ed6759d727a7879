"""Asking a running job, through its socket."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from holdfast.errors import JobError
from holdfast.spec.runtime import runtime_directory
from holdfast.wire.sockets import bindable

ANSWER_S = 10.0


class _Connection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("job", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ANSWER_S)
        with bindable(self._path) as name:
            self.sock.connect(name)


@dataclass(frozen=True, slots=True)
class RunningJob:
    job_id: str
    path: Path

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401  it is JSON
        connection = _Connection(self.path)
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer = response.read()
        except (OSError, HTTPException) as error:
            raise JobError(f"job {self.job_id} does not answer: {error}") from error
        finally:
            connection.close()
        if response.status != HTTPStatus.OK:
            raise JobError(answer.decode(errors="replace"))
        return json.loads(answer)


def find_job(wanted: str | None) -> RunningJob:
    """The running job of this user with this name or id; without one, the only job there is."""
    jobs = [job for path in sorted(runtime_directory().glob("*.sock")) if (job := _living(path)) is not None]
    found = [job for job in jobs if wanted in (None, job.job_id, job.job_id.rpartition("-")[0])]
    if len(found) == 1:
        return found[0]
    names = ", ".join(job.job_id for job in jobs) or "none"
    if not found:
        raise JobError(
            "no job is running" if wanted is None else f"--job {wanted}: it is not running; running: {names}"
        )
    raise JobError(f"several jobs are running, say which with --job: {names}")


def _living(path: Path) -> RunningJob | None:
    """The job at a socket; a socket that nobody serves any more is removed."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_S)
        try:
            with bindable(path) as name:
                probe.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return None
        except OSError:
            return None
    return RunningJob(path.name.removesuffix(".sock"), path)
