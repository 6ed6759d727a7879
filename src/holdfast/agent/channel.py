"""This node's certificates: opened once, used for every connection, and watched until they expire.

What opens them is imported only then: it takes its time to load, and most jobs have no TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.spec.tls import TlsSpec
from holdfast.wire.tls import Credentials, client_context

if TYPE_CHECKING:
    from holdfast.wire.certificates import Opened

DAY_S = 24 * 3600.0


class Channel:
    """The secure channel of one node. Files that change later count from the next start of the node."""

    def __init__(self, tls: TlsSpec) -> None:
        self._tls = tls
        self._client: Opened | None = None
        self._server: Opened | None = None

    def serving(self) -> Credentials:
        """For the master, if this node runs it."""
        from holdfast.wire.certificates import open_server

        self._server = self._server or open_server(self._tls)
        return self._server.credentials

    def asking(self) -> Credentials:
        """For whatever dials a master."""
        from holdfast.wire.certificates import open_client

        self._client = self._client or open_client(self._tls)
        return self._client.credentials

    def dialling(self, *, check_name: bool = True) -> ssl.SSLContext:
        """For this node's link; a master that it started itself needs no name to be known."""
        return client_context(self.asking(), check_name=check_name)

    async def remind(self, say: Callable[[str], None], *, every_s: float = DAY_S) -> None:
        """Say what has to be renewed, now and then again."""
        from holdfast.wire.certificates import expiry_warnings

        opened = [each for each in (self._client, self._server) if each is not None]
        # Both have the same authority and ciphers, which are spoken of once.
        for note in dict.fromkeys(note for each in opened for note in each.notes):
            say(note)
        while True:
            now, days = datetime.now(UTC), self._tls.warning_days
            found = [warning for each in opened for warning in expiry_warnings(each, within_days=days, now=now)]
            for warning in dict.fromkeys(found):
                say(warning)
            await asyncio.sleep(every_s)
