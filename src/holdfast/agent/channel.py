"""This node's certificates: opened once, used for every connection, and watched until they expire."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.spec.tls import TlsSpec
from holdfast.wire.certificates import Opened, expiry_warnings, open_client, open_server
from holdfast.wire.tls import Credentials, client_context

DAY_S = 24 * 3600.0


class Channel:
    """The secure channel of one node. Files that change later count from the next start of the node."""

    def __init__(self, tls: TlsSpec) -> None:
        self._tls = tls
        self._client = open_client(tls)
        self._server: Opened | None = None

    def dialling(self) -> ssl.SSLContext:
        """For this node's link; a master that it started itself needs no name to be known."""
        return client_context(self._client.credentials, check_name=self._server is None)

    def serving(self) -> Credentials:
        """For the master, if this node runs it."""
        self._server = self._server or open_server(self._tls)
        return self._server.credentials

    async def remind(self, say: Callable[[str], None], *, every_s: float = DAY_S) -> None:
        """Say what has to be renewed, now and then again."""
        for note in self._client.notes:
            say(note)
        while True:
            for warning in self._warnings():
                say(warning)
            await asyncio.sleep(every_s)

    def _warnings(self) -> list[str]:
        warnings: dict[str, None] = {}
        for opened in (self._client, self._server):
            if opened is not None:
                found = expiry_warnings(opened, within_days=self._tls.warning_days, now=datetime.now(UTC))
                # Both are from the same authority, which is warned of once.
                warnings |= dict.fromkeys(found)
        return list(warnings)
