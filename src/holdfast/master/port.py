"""The listening socket: plain or TLS, with patience for nobody."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.wire.tls import HANDSHAKE_S, Credentials, server_context

log = logging.getLogger(__name__)

REQUEST_S = 5
"""From the opening of a connection, or the end of a request, to the whole of the next one; then it is closed."""
LAST_WORDS_S = 0.5
"""For answers that are not finished when the master ends; then they are cut."""


@asynccontextmanager
async def listening(app: web.Application, listener: socket.socket, *, tls: Credentials | None) -> AsyncIterator[None]:
    """Serve meanwhile; what is being told in the end is told to the end, to those who listen."""
    logging.getLogger("aiohttp.server").addFilter(_is_our_fault)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=LAST_WORDS_S, keepalive_timeout=REQUEST_S)
    await runner.setup()
    assert runner.server is not None, "it is set up"
    server = await asyncio.get_running_loop().create_server(
        runner.server,
        sock=listener,
        ssl=None if tls is None else server_context(tls, refused=_Refusals().note),
        ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
    )
    try:
        yield
    finally:
        server.close()
        await runner.cleanup()


class _Refusals:
    """Logs each reason once: a stranger must not fill the terminal."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def note(self, reason: str) -> None:
        if reason not in self._reasons:
            self._reasons.add(reason)
            log.warning("refused a connection: %s", reason)


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Not what strangers send instead of HTTP, nor that they do not wait for the answer."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | ConnectionError))
