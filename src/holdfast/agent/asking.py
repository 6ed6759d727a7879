"""Asking a master over HTTP, as people do: from outside, one question at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from holdfast.agent.handshake import find_mismatch
from holdfast.core.ids import Address
from holdfast.errors import JobError
from holdfast.spec.reach import token_from_environment
from holdfast.spec.tls import TlsSpec, find_tls
from holdfast.wire.certificates import open_client
from holdfast.wire.stream import MAX_MOVES
from holdfast.wire.tls import check_peer, client_context, explain

TIMEOUT_S = 10.0


def ask(source: str, path: str, *, tls_config: str | None = None) -> Any:  # noqa: ANN401  it is JSON
    """What the master at HOST:PORT answers."""
    host, colon, port = source.rpartition(":")
    if not colon or not port.isdecimal():
        raise JobError(f"{source!r} is neither a file nor HOST:PORT of a running job")
    tls, _ = find_tls(tls_config)
    address = Address(host.strip("[]"), int(port))
    for _ in range(MAX_MOVES):
        status, body, moved_to = _fetch(address, path, tls)
        if status != HTTPStatus.TEMPORARY_REDIRECT:
            break
        url = urlsplit(moved_to)
        address = Address(url.hostname or "", url.port or 0)
    if status != HTTPStatus.OK:
        raise JobError(f"the job at {source} refuses: {body.decode(errors='replace')}")
    try:
        return json.loads(body)
    except ValueError as error:
        raise JobError(f"what answers at {source} is not a job: {error}") from error


def _fetch(address: Address, path: str, tls: TlsSpec | None) -> tuple[int, bytes, str]:
    """The status, the answer, and where to ask instead."""
    token = token_from_environment()
    try:
        with contextlib.closing(_connect(address, tls)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            response = connection.getresponse()
            return response.status, response.read(), response.getheader("Location", "")
    except ssl.SSLError as error:
        reason = explain(error, whose="its certificate")
        raise JobError(f"no secure channel to the job at {address}: {reason}") from error
    except (OSError, HTTPException) as error:
        mismatch = asyncio.run(find_mismatch(error, address, secure=tls is not None))
        raise JobError(mismatch or f"no job answers at {address}: {error}") from error


def _connect(address: Address, tls: TlsSpec | None) -> HTTPConnection:
    if tls is None:
        return HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
    credentials = open_client(tls).credentials
    connection = HTTPSConnection(address.host, address.port, timeout=TIMEOUT_S, context=client_context(credentials))
    connection.connect()
    check_peer(connection.sock.getpeercert() or {}, host=address.host, revoked=credentials.revoked)
    return connection
