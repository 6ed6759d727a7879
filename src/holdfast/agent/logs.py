"""Where each worker's output goes, and what it left behind when it failed.

<log dir>/<job id>_<random>/attempt_<restarts>/<local rank>/{stdout.log, stderr.log, error.json}, as torchrun has it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from holdfast.spec.job import LogSpec

OUT, ERR = 1, 2
STREAM_FILE = {OUT: "stdout.log", ERR: "stderr.log"}
MAX_ERROR_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Route:
    """Where one stream of one worker goes."""

    shown: bool
    file: Path | None

    @property
    def copied(self) -> bool:
        """Both to a file and to the console: somebody has to read it and write it twice."""
        return self.shown and self.file is not None


def route(logs: LogSpec, *, stream: int, local_rank: int, directory: Path) -> Route:
    """Redirected output is only in its file; copied output is on the console too; the filter hides ranks there."""
    tee = bool(logs.tee.get(local_rank, 0) & stream)
    redirected = bool(logs.redirects.get(local_rank, 0) & stream)
    shown = (tee or not redirected) and (logs.shown_local_ranks is None or local_rank in logs.shown_local_ranks)
    return Route(shown, directory / STREAM_FILE[stream] if tee or redirected else None)


def line_prefix(logs: LogSpec, *, role: str, rank: int, local_rank: int) -> str:
    """What torchrun puts before a copied line, or what the user's template says."""
    template = logs.prefix_template
    if template is None:
        return f"[{role}{rank}]:"
    for name, value in (("role_name", role), ("local_rank", local_rank), ("rank", rank)):
        template = template.replace(f"${{{name}}}", str(value)).replace(f"${name}", str(value))
    return template


def read_error(error_file: Path) -> str:
    """The traceback that a worker left, or the Python stack of its crash, or nothing."""
    for path in (error_file, error_file.with_name(error_file.name + ".crash")):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if text:
            return _unpack(text)[-MAX_ERROR_CHARS:]
    return ""


def _unpack(text: str) -> str:
    """torch's error file holds the traceback in JSON; anything else is taken as it is."""
    try:
        message = json.loads(text)["message"]
    except (ValueError, TypeError, KeyError):
        return text
    if isinstance(message, dict):
        stack = message.get("extraInfo", {}).get("py_callstack")
        return str(stack or message.get("message", ""))
    return str(message)
