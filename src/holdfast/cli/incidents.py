"""`holdfast incidents`: each repair of a job as one story."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from holdfast.core.ids import Address
from holdfast.errors import JobError
from holdfast.spec.flags import Parser
from holdfast.spec.load import token_from_environment
from holdfast.spec.tls import CONFIG, FLAG, TlsSpec, find_tls
from holdfast.wire.tls import check_peer, client_context, explain

TIMEOUT_S = 10.0


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
    lines = [f"incident {incident['number']}  {incident['at']}  generation {incident['generation']}"]
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
    host, colon, port = source.rpartition(":")
    if not colon or not port.isdecimal():
        raise JobError(f"{source!r} is neither a file nor HOST:PORT of a running job")
    tls, _ = find_tls(tls_config)
    status, body = _fetch(Address(host.strip("[]"), int(port)), "/api/story", tls)
    if status != HTTPStatus.OK:
        raise JobError(f"the job at {source} refuses: {body.decode(errors='replace')}")
    try:
        entries: list[dict[str, Any]] = json.loads(body)
    except ValueError as error:
        raise JobError(f"what answers at {source} is not a job: {error}") from error
    return entries


def _fetch(address: Address, path: str, tls: TlsSpec | None) -> tuple[int, bytes]:
    token = token_from_environment()
    try:
        with contextlib.closing(_connect(address, tls)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            return response.status, response.read()
    except ssl.SSLError as error:
        reason = explain(error, whose="its certificate")
        raise JobError(f"no secure channel to the job at {address}: {reason}") from error
    except (OSError, HTTPException) as error:
        from holdfast.agent.handshake import find_mismatch

        mismatch = asyncio.run(find_mismatch(error, address, secure=tls is not None))
        raise JobError(mismatch or f"no job answers at {address}: {error}") from error


def _connect(address: Address, tls: TlsSpec | None) -> HTTPConnection:
    if tls is None:
        return HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
    from holdfast.wire.certificates import open_client

    credentials = open_client(tls).credentials
    connection = HTTPSConnection(address.host, address.port, timeout=TIMEOUT_S, context=client_context(credentials))
    connection.connect()
    check_peer(connection.sock.getpeercert() or {}, host=address.host, revoked=credentials.revoked)
    return connection
