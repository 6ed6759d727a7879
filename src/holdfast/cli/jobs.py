"""`holdfast status`, `nodes`, `scale` and `stop`: a job that `holdfast submit` runs, seen and told from outside."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from holdfast.errors import SpecError
from holdfast.spec.flags import Parser
from holdfast.spec.job_kinds import render_bytes
from holdfast.submission.client import find_job


def job_parser(command: str, description: str) -> Parser:
    parser = Parser(prog=f"holdfast {command}", description=description)
    parser.add_argument("--job", metavar="NAME", help="Name or id of the job; not needed if only one is running.")
    parser.add_argument("--json", action="store_true", help="The answer as JSON.")
    return parser


def status(argv: Sequence[str]) -> int:
    args = job_parser("status", "Show how a running job is.").parse_args(argv)
    answer = find_job(args.job).ask("GET", "/job")
    return _say(answer, as_json=args.json, text=_render_status(answer))


def nodes(argv: Sequence[str]) -> int:
    parser = job_parser("nodes", "Show every node of a running job: those that run, that wait for room, and are gone.")
    args = parser.parse_args(argv)
    answer = find_job(args.job).ask("GET", "/nodes")
    return _say(answer, as_json=args.json, text=_render_nodes(answer))


def scale(argv: Sequence[str]) -> int:
    parser = job_parser("scale", "Change how many nodes a role of a running job has, within what its file allows.")
    parser.add_argument("role", metavar="ROLE", nargs="?", help="The role, as in the job's file.")
    parser.add_argument("number", metavar="N", nargs="?", help="How many nodes it shall have.")
    parser.add_argument("--slots", metavar="N", help="For how many nodes there shall be room; who waits then starts.")
    args = parser.parse_args(argv)
    if args.number is None and args.slots is None:
        raise SpecError("ROLE N", None, "say how many nodes there shall be, or for how many there is room (--slots)")
    body = {"role": args.role, "nodes": _whole("N", args.number), "slots": _whole("--slots", args.slots)}
    answer = find_job(args.job).ask("POST", "/scale", body)
    return _say(answer, as_json=args.json, text=f"{answer['wanted_nodes']} nodes are wanted\n")


def stop(argv: Sequence[str]) -> int:
    parser = job_parser("stop", "End a running job. Its workers get SIGINT, and time to save their state.")
    args = parser.parse_args(argv)
    answer = find_job(args.job).ask("POST", "/stop")
    return _say(answer, as_json=args.json, text=f"job {answer['job_id']} is stopping\n")


def _whole(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise SpecError(name, text, "it must be a whole number, 0 or more")
    return int(text)


def _say(answer: Any, *, as_json: bool, text: str) -> int:  # noqa: ANN401  it is JSON
    sys.stdout.write(json.dumps(answer, indent=2) + "\n" if as_json else text)
    return 0


def _render_status(job: dict[str, Any]) -> str:
    head = {"job": job["job_id"]}
    room = {
        "room": "" if job["slots"] is None else f"for {job['slots']} nodes",
        "quarantined": ", ".join(job["quarantined"]),
        "directory": job["directory"],
    }
    if "roles" not in job:
        return _render_rows({**head, **_role_rows(job), **room})
    parts = [{**head, **room}, *({"role": role["role"], **_role_rows(role)} for role in job["roles"])]
    return "\n".join(_render_rows(part) for part in parts)


def _role_rows(role: dict[str, Any]) -> dict[str, str]:
    ended = role.get("exit_code")
    master = role["master"] or {}
    silent = "the master does not answer" if ended is None else f"ended with exit code {ended}"
    return {
        "phase": master.get("phase", silent),
        "waiting for": master.get("waiting", ""),
        "nodes": f"{role['running_nodes']} running, {role['pending_nodes']} pending, {role['gone_nodes']} gone; "
        f"{role['wanted_nodes']} wanted, {role['min_nodes']} to {role['max_nodes']} possible",
        "world": f"{(master.get('world') or {}).get('size', 0)} workers, generation {master.get('generation', 0)}",
        "restarts": str(master.get("restarts", 0)),
    }


def _render_rows(rows: dict[str, str]) -> str:
    return "".join(f"{name:<12} {value}\n" for name, value in rows.items() if value)


def _render_nodes(found: list[dict[str, Any]]) -> str:
    several = any("role" in node for node in found)
    rows = [("NAME", *(["ROLE"] if several else []), "RANK", "STATE", "HOST", "PID", "ADDRESS", "MEMORY", "WORKERS")]
    for node in found:
        state = f"{node['state']} ({node['why_gone'].replace('_', ' ')})" if node["why_gone"] else node["state"]
        memory = "" if node["memory_bytes"] is None else render_bytes(node["memory_bytes"])
        pids = ",".join(map(str, node["worker_pids"]))
        pid = "" if node["pid"] is None else str(node["pid"])
        who = (node["name"], *([node["role"]] if several else []), str(node["rank"]))
        rows.append((*who, state, node["host"], pid, node["address"], memory, pids))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(line.rstrip() + "\n" for line in lines)
