"""The master of one role, as the submitter hosts, follows and asks it."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec

from holdfast.agent.hosting import HostedMaster
from holdfast.agent.status import StatusLine
from holdfast.core.fleet.roles import STRAGGLE_S
from holdfast.core.ids import Address, Outcome
from holdfast.errors import JobError
from holdfast.spec.submit import RoleSpec
from holdfast.submission.directory import JobDirectory
from holdfast.wire.stream import follow_story

ASK_S = 2.0
"""For the master to answer a question; then its answer is left out."""


class RoleMaster:
    def __init__(
        self,
        role: RoleSpec,
        listener: socket.socket,
        *,
        directory: JobDirectory,
        dial: Callable[[int], socket.socket],
        on_death: Callable[[str], None],
        on_ruin: Callable[[JobError], None],
    ) -> None:
        self.role = role
        self.address = Address(*listener.getsockname()[:2])
        self.status = StatusLine(role.rules)
        self.outcome: Outcome | None = None
        """How the role has ended."""
        self._is_gone = False
        self._listener = listener
        token = directory.token.read_text()
        self._master = HostedMaster(
            listener,
            rules=replace(role.rules, awaits_rank=True),
            journal=directory.journal(role.name),
            sole_nonce=None,
            token=token,
            tls=None,
            client_tls=None,
            node="",
            nonce=secrets.token_hex(8),
            on_death=on_death,
            on_ruin=on_ruin,
        )
        self._session = aiohttp.ClientSession(
            f"http://{self.address}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
            connector=aiohttp.TCPConnector(socket_factory=lambda info: dial(info[0])),
            read_bufsize=1 << 20,
        )

    def start(self) -> None:
        self._master.start()

    async def story(self) -> AsyncIterator[dict[str, Any]]:
        """Every entry, up to the end of the role; then the master has told its nodes, and is gone."""
        async for entry in follow_story(self._session):
            is_last = entry["kind"] == "job_finished"
            if is_last:
                self.outcome = msgspec.convert(entry["outcome"], Outcome)
            yield entry
            if is_last:
                await self._master.wait_until_gone(within_s=STRAGGLE_S)
                self._is_gone = True
                return

    async def ask(self) -> dict[str, Any] | None:
        """What the master says of its role; None if it does not answer, or is gone."""
        if self._is_gone:
            return None
        try:
            async with asyncio.timeout(ASK_S), self._session.get("/api/job") as response:
                found: dict[str, Any] = await response.json()
                return found
        except (TimeoutError, aiohttp.ClientError):
            return None

    async def close(self) -> None:
        await self._master.wait_until_gone(within_s=0.0)
        await self._session.close()
        self._listener.close()
