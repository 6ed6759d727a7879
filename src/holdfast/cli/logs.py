"""`holdfast logs`: what a node of a running job has written."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.cli.jobs import job_parser
from holdfast.errors import JobError, SpecError
from holdfast.submission.client import RunningJob, find_job

LOOK_S = 0.2


def logs(argv: Sequence[str]) -> int:
    parser = job_parser("logs", "Show what a node has written, its agent and its workers.")
    parser.add_argument(
        "node",
        metavar="NODE",
        help="Name of the node, as in holdfast nodes; also of one that is gone. In a job of several roles also "
        "ROLE/RANK: the newest node with this rank.",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="Go on until the node is gone.")
    args = parser.parse_args(argv)
    job = find_job(args.job)
    node = _find(args.node, job.ask("GET", "/nodes"))
    who = {"node": node["name"], **({"role": node["role"]} if "role" in node else {})}
    try:
        for line in _lines(Path(node["log"]), job, node["name"] if args.follow else None):
            text = line.decode(errors="replace")
            record = json.dumps({**who, "line": text.rstrip("\n")}) + "\n"
            sys.stdout.write(record if args.json else text)
            sys.stdout.flush()
    except FileNotFoundError:
        raise JobError(f"{node['name']} has written nothing yet") from None
    except (KeyboardInterrupt, BrokenPipeError):
        return 0
    return 0


def _find(wanted: str, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    by_name = {node["name"]: node for node in nodes}
    by_place = {f"{node['role']}/{node['rank']}": node for node in nodes if "role" in node}
    node = by_name.get(wanted) or by_place.get(wanted)
    if node is None:
        raise SpecError("NODE", wanted, f"it must be one of {', '.join([*by_name, *by_place])}")
    return node


def _lines(path: Path, job: RunningJob, follow: str | None) -> Iterator[bytes]:
    """The lines of a file, and those that come while the node `follow` is there."""
    with open(path, "rb") as file:
        rest = b""
        while True:
            over = follow is None or not _is_there(job, follow)
            *whole, rest = (rest + file.read()).split(b"\n")
            yield from (line + b"\n" for line in whole)
            if over:
                yield from [rest] if rest else []
                return
            time.sleep(LOOK_S)


def _is_there(job: RunningJob, name: str) -> bool:
    try:
        return any(node["name"] == name and node["state"] != "gone" for node in job.ask("GET", "/nodes"))
    except JobError:
        return False
