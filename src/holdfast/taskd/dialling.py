"""Asking the master at the manager's port, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from holdfast.agent.channel import Channel
from holdfast.agent.handshake import find_mismatch
from holdfast.core.ids import Address
from holdfast.errors import JobError
from holdfast.spec.tls import TlsSpec
from holdfast.wire.stream import get

DIAL_TIMEOUT_S = 5.0
MAX_LINE_BYTES = 1 << 20
"""An entry of the story is one line."""


class Absent(JobError):
    """Nobody answers there."""


@asynccontextmanager
async def dialled(address: Address, *, token: str | None, tls: TlsSpec | None) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with the master; what goes wrong in it is translated."""
    context = None if tls is None else Channel(tls).dialling()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=DIAL_TIMEOUT_S)
    base = f"{'http' if context is None else 'https'}://{address}"
    connector = aiohttp.TCPConnector(ssl=context or True)
    try:
        async with aiohttp.ClientSession(
            base, headers=headers, timeout=timeout, connector=connector, read_bufsize=MAX_LINE_BYTES
        ) as session:
            yield session
    except (aiohttp.ClientError, OSError) as error:
        if mismatch := await find_mismatch(error, address, secure=context is not None):
            raise JobError(mismatch) from error
        raise Absent(f"no master answers at {address}: {error}") from error


async def fetch_job(session: aiohttp.ClientSession, address: Address) -> dict[str, Any]:
    """The state of the job that is served there."""
    async with get(session, "/api/job") as response:
        body = await response.read()
        if response.status in (401, 403):
            raise JobError(f"the master at {address} refuses: {body.decode(errors='replace')}")
        try:
            job = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            job = {}
    if "rules" not in job:
        raise JobError(f"{address} is in use, and what answers there is not a holdfast master")
    return job
