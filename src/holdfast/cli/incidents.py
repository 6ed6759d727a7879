"""`holdfast incidents`: each repair of a job as one story."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.agent.asking import ask
from holdfast.spec.flags import Parser
from holdfast.spec.tls import CONFIG, FLAG


def incidents(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="holdfast incidents", description="Show every incident of a job: what was seen, decided and done."
    )
    parser.add_argument(
        "source", metavar="FILE|HOST:PORT", help="An events file (--events), or a running job's master."
    )
    parser.add_argument("--json", action="store_true", help="One JSON object per incident.")
    parser.add_argument(FLAG, metavar="FILE", help=f"For a job with TLS: its configuration. {CONFIG} does the same.")
    args = parser.parse_args(argv)
    found = collect(_read(args.source, tls_config=args.tls_config))
    if args.json:
        sys.stdout.writelines(json.dumps(incident) + "\n" for incident in found)
    else:
        sys.stdout.write("\n".join(_render(incident) for incident in found) or "no incidents\n")
    return 0


def collect(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The incidents of every role; each is told with its role where the job has several."""
    roles = list(dict.fromkeys(entry.get("role") for entry in entries))
    found = []
    for role in roles:
        whose = {} if role is None else {"role": role}
        own = [entry for entry in entries if entry.get("role") == role]
        found += [{**whose, **incident} for incident in _collect_role(own)]
    return found


def _collect_role(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Incidents with their symptoms, actions and verdicts, from the entries of a story."""
    found: dict[int, dict[str, Any]] = {}
    symptoms: list[str] = []
    current: dict[str, Any] | None = None
    for entry in entries:
        match entry["kind"]:
            case "worker_failed":
                symptoms.append(entry["text"])
            case "incident_opened":
                current = {
                    "number": entry["number"],
                    "at": entry["at"],
                    "generation": entry["generation"],
                    "symptoms": symptoms or [entry["symptom"]],
                    "fault": entry["symptom"],
                    "strategy": entry["strategy"],
                    "reason": entry["reason"],
                    "actions": [],
                    "verdict": "open",
                    "total_ms": None,
                    "timings_ms": {},
                }
                found[entry["number"]] = current
                symptoms = []
            case "workers_started" if current is not None and current["verdict"] == "open":
                current["actions"].append(entry["text"])
            case "incident_closed":
                closed = found[entry["number"]]
                closed.update({name: entry[name] for name in ("verdict", "total_ms", "timings_ms")})
    return [found[number] for number in sorted(found)]


def _render(incident: dict[str, Any]) -> str:
    whose = f" of {incident['role']}" if "role" in incident else ""
    lines = [f"incident {incident['number']}{whose}  {incident['at']}  generation {incident['generation']}"]
    lines += [f"  symptom   {text}" for text in incident["symptoms"]]
    lines.append(f"  decision  {incident['strategy']}: {incident['reason']}")
    lines += [f"  action    {text}" for text in incident["actions"]]
    total = "" if incident["total_ms"] is None else f" in {incident['total_ms']:.0f} ms"
    lines.append(f"  verdict   {incident['verdict']}{total}")
    if incident["timings_ms"]:
        phases = "  ".join(f"{name} {ms:.0f}" for name, ms in incident["timings_ms"].items())
        lines.append(f"  phases    {phases} (ms, slowest worker)")
    return "\n".join(lines) + "\n"


def _read(source: str, *, tls_config: str | None) -> list[dict[str, Any]]:
    path = Path(source)
    if path.is_file():
        return [json.loads(line) for line in path.read_text().splitlines() if line]
    entries: list[dict[str, Any]] = ask(source, "/api/story", tls_config=tls_config)
    return entries
