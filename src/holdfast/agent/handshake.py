"""Why somebody and the port that was dialled do not understand each other, where one of them speaks TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import aiohttp

from holdfast.core.ids import Address
from holdfast.wire.tls import NOT_TLS, explain

PROBE_S = 2.0
TLS_ANSWERS = (b"\x16\x03", b"\x15\x03")
"""How records begin that carry a handshake or an alert."""


async def find_mismatch(error: Exception, address: Address, *, secure: bool) -> str | None:
    """A reason that waiting does not change; None if the error is of another kind."""
    if secure:
        failure = ssl_error(error)
        if failure is None or isinstance(failure, ssl.SSLEOFError):
            return None
        if failure.reason in NOT_TLS:
            return f"{address} does not speak TLS: --tls-config or HOLDFAST_TLS_CONFIG was given here, and not there"
        return f"no secure channel to the master at {address}: {explain(failure, whose='its certificate')}"
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientResponseError, ConnectionResetError)) and (
        await _speaks_tls(address)
    ):
        return f"the master at {address} speaks TLS only: --tls-config or HOLDFAST_TLS_CONFIG is needed here too"
    return None


def ssl_error(error: BaseException | None) -> ssl.SSLError | None:
    """The error of `ssl` itself: some of aiohttp's are called so too, but know nothing."""
    while isinstance(error, aiohttp.ClientError):
        error = error.__cause__
    return error if isinstance(error, ssl.SSLError) else None


async def _speaks_tls(address: Address) -> bool:
    """Whether the port answers a greeting of TLS in kind, be it with a refusal."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=address.host).do_handshake()
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(outgoing.read())
            answer = await reader.read(2)
            writer.close()
    except (OSError, TimeoutError):
        return False
    return answer in TLS_ANSWERS
