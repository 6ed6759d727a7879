"""The listening socket: plain or TLS, with patience for nobody."""

from __future__ import annotations

import asyncio
import logging
import socket

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.wire.tls import HANDSHAKE_S, Credentials, server_context

log = logging.getLogger(__name__)

REQUEST_S = 5
"""From the opening of a connection, or the end of a request, to the whole of the next one; then it is closed."""


async def listen(app: web.Application, listener: socket.socket, *, tls: Credentials | None) -> asyncio.Server:
    logging.getLogger("aiohttp.server").addFilter(_is_our_fault)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, keepalive_timeout=REQUEST_S)
    await runner.setup()
    assert runner.server is not None, "it is set up"
    return await asyncio.get_running_loop().create_server(
        runner.server,
        sock=listener,
        ssl=None if tls is None else server_context(tls, refused=_Refusals().note),
        ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
    )


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
