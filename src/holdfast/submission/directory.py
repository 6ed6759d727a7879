"""The files of a submitted job."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import JobError
from holdfast.spec.runtime import runtime_directory
from holdfast.spec.submit import SubmitSpec


@dataclass(frozen=True, slots=True)
class JobDirectory:
    path: Path
    kept: bool
    """Whether it stays when the job has ended."""
    socket: Path
    """Where the job can be asked; it lies where running jobs are looked for."""

    @classmethod
    def make(cls, spec: SubmitSpec) -> JobDirectory:
        runtime = runtime_directory()
        base = runtime if spec.log_dir is None else Path(spec.log_dir).absolute()
        path = base / spec.job_id
        try:
            for directory in (path, path / "nodes", path / "logs", path / "runs"):
                directory.mkdir(mode=0o700, parents=True)
            token = os.open(path / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(token, "w") as file:
                file.write(secrets.token_hex(32))
        except OSError as error:
            raise JobError(f"log_dir: {error.filename} cannot be made: {error.strerror}") from error
        return cls(path, spec.log_dir is not None, runtime / f"{spec.job_id}.sock")

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def runs(self) -> Path:
        """Where nodes have what goes with them; with one that was killed, it goes when the job has ended."""
        return self.path / "runs"

    def journal(self, role: str) -> Path:
        return self.path / f"journal-{role}.db"

    def log(self, node: str) -> Path:
        return self.path / "logs" / f"{node}.log"

    def close(self) -> None:
        """Leave only what somebody may want to read."""
        self.socket.unlink(missing_ok=True)
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        self.token.unlink(missing_ok=True)
        shutil.rmtree(self.runs, ignore_errors=True)
        for leftover in self.path.glob("journal-*.db*"):
            leftover.unlink(missing_ok=True)
