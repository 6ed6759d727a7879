"""The agent's connection to the master: dialled again for as long as the job may live.

Only the newest status is worth sending, so nothing queues up while the master is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from holdfast.agent.handshake import find_mismatch, ssl_error
from holdfast.core.backoff import Backoff
from holdfast.core.ids import Address
from holdfast.core.workers import Heard, OrderReceived, Report
from holdfast.errors import JobError, ProtocolError, Refused
from holdfast.spec.job import NodeSpec
from holdfast.version import __version__
from holdfast.wire.identity import computer_id, machine_id
from holdfast.wire.messages import (
    MAX_MESSAGE_BYTES,
    MEMBER_PATH,
    PROTOCOL,
    PROTOCOL_HEADER,
    VERSION_HEADER,
    Accepted,
    Ack,
    Denied,
    FinishOrder,
    Happened,
    PrepareOrder,
    Register,
    Reported,
    RunOrder,
    StopOrder,
    decode_from_master,
    encode,
    message_order,
)
from holdfast.wire.tls import explain

DIAL_TIMEOUT_S = 5.0
"""For one try: a host that drops packets must not hold up the next one for minutes."""
CLOSE_S = 2.0
"""For the master to agree that a connection is over; then it is cut."""
PATIENCE_S = 1.0
"""A person is told of trouble that lasts longer."""
REGISTRATION = -1
"""In place of the number of a report, until the registration is answered."""
MAX_UNACKED = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is."""

    node: str
    nonce: str
    store_host: str | None
    store_port: int
    is_server: bool = False
    hears: frozenset[str] = frozenset()
    """Kinds of entries of the story that it wants to be told; empty for all."""


def _growing_pause(attempt: int) -> float:
    return Backoff().delay_s(attempt, draw=random.random())


@dataclass(frozen=True, kw_only=True, slots=True)
class Manners:
    """How a link behaves towards its master."""

    pause_s: Callable[[int], float] = _growing_pause
    """Before the next try to find a master that was there before, given how many have failed in a row."""
    answer_s: float = math.inf
    """For the master to answer; one that is connected but does not is dialled again."""
    local_ip: str = ""
    """The address that connections come from; empty leaves it to the system."""


@dataclass(frozen=True, slots=True)
class Waited:
    """The link has something to say to a person who waits."""

    reason: str


Note = OrderReceived | Heard | Happened | Waited


class Link:
    """Registers with the master, reports, and hands on what the master says."""

    def __init__(
        self,
        address: Address,
        spec: NodeSpec,
        identity: Identity,
        notify: Callable[[Note], None],
        *,
        seen: Callable[[], int],
        manners: Manners | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = f"{'http' if tls is None else 'https'}://{address}{MEMBER_PATH}"
        self._tls = tls
        self._address = address
        self._spec = spec
        self._identity = identity
        self._notify = notify
        self._seen = seen
        """The number of the last entry of the story that got here."""
        self._latest: Report | None = None
        self._fresh = asyncio.Event()
        self._sent = asyncio.Event()
        self._sent_at: dict[int, float] = {}
        self._manners = manners or Manners()
        self._patience: asyncio.Timeout | None = None
        self._connected = False
        self._ever_connected = False
        self._dialled_at = 0.0

    def report(self, report: Report) -> None:
        self._latest = report
        self._sent.clear()
        self._fresh.set()

    async def flush(self, *, within_s: float, even_if_away: bool = False) -> None:
        """Let the newest report get out, if the master can be reached, or comes back in time."""
        if self._connected or even_if_away:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sent.wait(), within_s)

    async def run(self) -> None:
        """Keep the link up; raises when the master refuses us, or cannot be reached for `join_timeout_s`."""
        loop = asyncio.get_running_loop()
        attempt, since, said = 0, loop.time(), ""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=DIAL_TIMEOUT_S)
        local = (self._manners.local_ip, 0) if self._manners.local_ip else None
        connector = aiohttp.TCPConnector(ssl=self._tls or True, local_addr=local)
        async with aiohttp.ClientSession(headers=self._headers(), timeout=timeout, connector=connector) as session:
            while True:
                self._connected, must_wait = False, False
                # What an answer proves, it proves for the time of the question.
                self._dialled_at = loop.time()
                try:
                    await self._converse(session)
                    trouble = "the master closed the connection"
                except Refused as refusal:
                    if refusal.retry_after_s is None:
                        raise
                    trouble, must_wait = str(refusal), refusal.retry_after_s > 0
                except (aiohttp.ClientError, TimeoutError, OSError, ProtocolError) as error:
                    trouble = _explain(error)
                    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
                        error.os_error, ConnectionRefusedError
                    ):
                        # Its host is there and says that nobody listens: a dead master replaces nobody.
                        self._notify(Heard(self._dialled_at))
                if self._connected:
                    attempt, since, said = 0, loop.time(), ""
                limit_s = self._spec.rules.join_timeout_s
                if loop.time() - since >= limit_s:
                    raise JobError(f"no master at {self._address} within {limit_s:g} s: {trouble}")
                if (must_wait or loop.time() - since >= PATIENCE_S) and trouble != said:
                    said = trouble
                    self._notify(Waited(trouble if must_wait else f"no master at {self._address} yet: {trouble}"))
                # Whoever has never met its master is what the others wait for.
                pause_s = self._manners.pause_s if self._ever_connected else _growing_pause
                await asyncio.sleep(pause_s(attempt))
                attempt += 1

    def _headers(self) -> dict[str, str]:
        headers = {PROTOCOL_HEADER: str(PROTOCOL), VERSION_HEADER: __version__}
        if self._spec.token is not None:
            headers["Authorization"] = f"Bearer {self._spec.token}"
        return headers

    async def _converse(self, session: aiohttp.ClientSession) -> None:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                closing = aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
                link = await session.ws_connect(self._url, max_msg_size=MAX_MESSAGE_BYTES, compress=0, timeout=closing)
            try:
                async with asyncio.timeout(None) as self._patience:
                    await link.send_bytes(encode(self._register()))
                    self._sent_at = {REGISTRATION: asyncio.get_running_loop().time()}
                    self._await_answer()
                    writer = asyncio.create_task(self._write(link))
                    try:
                        await self._read(link)
                    finally:
                        writer.cancel()
            finally:
                await link.close()
        except aiohttp.WSServerHandshakeError as error:
            raise await self._refusal(session, error.status) from error
        except (aiohttp.ClientError, OSError) as error:
            # Later it cannot be how the job was set up, and a job that runs is not given up for a certificate.
            if not self._ever_connected and (
                reason := await find_mismatch(error, self._address, secure=self._tls is not None)
            ):
                raise Refused(reason) from error
            raise

    async def _refusal(self, session: aiohttp.ClientSession, status: int) -> Refused:
        """Ask once more, plainly, for the reason that a failed upgrade does not carry."""
        if status not in (401, 403, 426):
            return Refused(f"{self._address} answers (HTTP {status}), but it is not a holdfast master")
        async with asyncio.timeout(DIAL_TIMEOUT_S), session.get(self._url) as response:
            return Refused(f"the master at {self._address} refused this node: {await response.text()}")

    def _register(self) -> Register:
        spec, identity = self._spec, self._identity
        assert self._latest is not None, "the first status precedes the link"
        return Register(
            identity.node,
            identity.nonce,
            socket.gethostname(),
            machine_id(),
            os.getpid(),
            spec.num_workers,
            identity.store_host,
            identity.store_port,
            spec.node_rank,
            spec.rules.job_id,
            spec.rules.min_nodes,
            spec.rules.max_nodes,
            self._latest.status,
            self._seen() if self._ever_connected else -1,
            computer_id(),
            spec.rules.agreed,
            identity.is_server,
            sorted(identity.hears),
        )

    def _await_answer(self) -> None:
        """Hang up when the oldest question that is still open has not been answered in time."""
        if self._patience is None or self._patience.expired():
            return
        oldest = next(iter(self._sent_at.values()), math.inf)
        until = oldest + self._manners.answer_s
        self._patience.reschedule(until if until < math.inf else None)

    async def _write(self, link: aiohttp.ClientWebSocketResponse) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._fresh.wait()
            self._fresh.clear()
            report = self._latest
            if report is None or not self._connected:
                continue
            if len(self._sent_at) >= MAX_UNACKED:
                self._sent_at.clear()
            self._sent_at[report.seq] = loop.time()
            self._await_answer()
            await link.send_bytes(encode(Reported(report.seq, report.status)))
            if report is self._latest:
                self._sent.set()

    async def _read(self, link: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in link:
            if frame.type is not aiohttp.WSMsgType.BINARY:
                continue
            match decode_from_master(frame.data):
                case Accepted():
                    self._connected = self._ever_connected = True
                    self._sent_at.clear()
                    self._await_answer()
                    self._notify(Heard(self._dialled_at))
                    self._fresh.set()
                case Denied() as denied:
                    raise Refused(
                        f"the master at {self._address} refused this node: {denied.reason}",
                        retry_after_s=denied.retry_after_s,
                    )
                case Ack() as ack:
                    if (sent_at := self._sent_at.pop(ack.seq, None)) is not None:
                        self._await_answer()
                        self._notify(Heard(sent_at))
                case (RunOrder() | PrepareOrder() | StopOrder() | FinishOrder()) as order:
                    self._notify(OrderReceived(message_order(order)))
                case Happened() as happened:
                    self._notify(happened)


def _explain(error: Exception) -> str:
    if (failure := ssl_error(error)) is not None:
        return explain(failure, whose="its certificate")
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number).lower() if number else str(error.os_error)
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(error) or type(error).__name__
