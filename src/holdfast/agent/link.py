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
from holdfast.agent.seat import Seat
from holdfast.core.backoff import Backoff
from holdfast.core.election import ELECTION_S, Candidacy
from holdfast.core.search import DIAL_S, Dial, Search
from holdfast.core.workers import Bequeathed, Heard, MasterHosted, OrderReceived, Report
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
    Bequest,
    Denied,
    Happened,
    Hello,
    Moved,
    Register,
    Reported,
    decode_from_master,
    encode,
    message_order,
)
from holdfast.wire.tls import explain

CLOSE_S = 2.0
"""For the master to agree that a connection is over; then it is cut."""
PATIENCE_S = 1.0
"""A person is told of trouble that lasts longer."""
REMIND_S = 300.0
"""So often trouble that lasts is told again."""
REGISTRATION = -1
"""In place of the number of a report, until the registration is answered."""
MAX_UNACKED = 4096
MOVED = "the master has moved"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is."""

    node: str
    nonce: str
    store_host: str | None
    store_port: int
    is_server: bool = False
    deputy_port: int = 0
    hears: frozenset[str] = frozenset()
    """Kinds of entries of the story that it wants to be told; empty for all."""


def _growing_pause(attempt: int) -> float:
    return Backoff().delay_s(attempt, draw=random.random())


@dataclass(frozen=True, kw_only=True, slots=True)
class Manners:
    """How a link behaves towards its master."""

    first_pause_s: Callable[[int], float] = _growing_pause
    """Before the next try to find a master that was never there, given how many have failed in a row."""
    pause_s: Callable[[int], float] = _growing_pause
    """The same, of one that was there before."""
    answer_s: float = math.inf
    """For the master to answer; one that is connected but does not is dialled again."""
    local_ip: str = ""
    """The address that connections come from; empty leaves it to the system."""
    away_s: Callable[[], float] | None = None
    """So long a master cannot be reached until that is the end; None: for `join_timeout_s`."""


@dataclass(frozen=True, slots=True)
class Waited:
    """The link has something to say to a person who waits."""

    reason: str


Note = OrderReceived | Heard | MasterHosted | Bequeathed | Happened | Waited


class Link:
    """Registers with the master, reports, and hands on what the master says."""

    def __init__(
        self,
        search: Search,
        spec: NodeSpec,
        identity: Identity,
        notify: Callable[[Note], None],
        *,
        seen: Callable[[], int],
        manners: Manners | None = None,
        tls: ssl.SSLContext | None = None,
        seat: Seat | None = None,
    ) -> None:
        self._tls = tls
        self._search = search
        self._address = search.address
        self._seat = seat
        """Of the master, should it be elected to be here."""
        self._spec = spec
        self._identity = identity
        self._notify = notify
        self._seen = seen
        """The number of the last entry of the story that got here."""
        self._latest: Report | None = None
        self._fresh = asyncio.Event()
        self._sent = asyncio.Event()
        self._heeded = asyncio.Event()
        self._sent_at: dict[int, float] = {}
        self._manners = manners or Manners()
        self._patience: asyncio.Timeout | None = None
        self._connected = False
        self._ever_connected = False
        self._dialled_at = 0.0
        self._is_candidate = False
        self._heard_at = math.inf
        """When the newest thing was sent that the master has answered."""

    def report(self, report: Report) -> None:
        self._latest = report
        self._sent.clear()
        self._heeded.clear()
        self._fresh.set()

    async def flush(self, *, within_s: float) -> None:
        """Let the newest report get out, if the master can be reached."""
        if self._connected:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sent.wait(), within_s)

    async def convince(self, *, within_s: float) -> bool:
        """Wait for the master to answer the newest report, and so to keep it, also if it has to come back first."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._heeded.wait(), within_s if within_s < math.inf else None)
        return self._heeded.is_set()

    async def run(self) -> None:
        """Keep the link up; raises when the master refuses us, or cannot be reached and is given up."""
        loop = asyncio.get_running_loop()
        attempt, since, said, said_at = 0, loop.time(), "", -math.inf
        while True:
            dial = self._choose()
            self._connected, retry_after_s, proof = False, 0.0, ""
            # What an answer proves, it proves for the time of the question.
            self._dialled_at = loop.time()
            try:
                trouble = await self._converse(dial)
            except Refused as refusal:
                if refusal.retry_after_s is None:
                    raise
                trouble, retry_after_s = str(refusal), refusal.retry_after_s
                self._search.be_released()
            except _NotFollowed as error:
                proof = str(error)
                trouble = proof or "it is not the master that this node has voted for"
            except (aiohttp.ClientError, TimeoutError, OSError, ProtocolError) as error:
                trouble = _explain(error)
                if self._is_candidate and not self._connected:
                    self._withdraw()
                if _is_refusal(error):
                    proof = self._note_refusal()
            if self._connected:
                attempt, since, said = 0, loop.time(), ""
            elif trouble != MOVED and self._search.fail(proof=proof, silent_s=self._silence_s()):
                continue
            limit_s = self._spec.rules.join_timeout_s if self._manners.away_s is None else self._manners.away_s()
            away_s, must_wait = loop.time() - since, retry_after_s > 0
            if away_s >= limit_s and must_wait:
                raise JobError(f"{trouble}; given up after {limit_s:g} s")
            if away_s >= limit_s:
                raise JobError(f"no master at {self._address} within {limit_s:g} s: {trouble}")
            if (must_wait or away_s >= PATIENCE_S) and (trouble != said or loop.time() >= said_at + REMIND_S):
                said, said_at = trouble, loop.time()
                self._notify(Waited(trouble if must_wait else f"no master at {self._address} yet: {trouble}"))
            is_known = self._ever_connected or must_wait
            pause_s = (self._manners.pause_s if is_known else self._manners.first_pause_s)(attempt)
            await asyncio.sleep(min(pause_s, retry_after_s) if must_wait else pause_s)
            attempt += 1

    def _choose(self) -> Dial:
        """Where to look for the master now; if nowhere else, here."""
        choice = self._search.next(silent_s=self._silence_s(), now=asyncio.get_running_loop().time())
        if isinstance(choice, Candidacy):
            assert self._seat is not None, "a node that cannot stand for election is no deputy"
            self._seat.stand(choice)
            choice, self._is_candidate = Dial(choice.address, accept_s=2 * ELECTION_S), True
        else:
            self._is_candidate = False
        self._address = choice.address
        return choice

    def _withdraw(self) -> None:
        """Whoever does not wait for the outcome of its own election must not win it."""
        assert self._seat is not None, "a candidate has a seat"
        self._seat.withdraw()
        self._search.be_released()

    def _silence_s(self) -> float:
        return max(0.0, asyncio.get_running_loop().time() - self._heard_at)

    def _hear(self, sent_at: float) -> None:
        self._heard_at = sent_at
        self._notify(Heard(sent_at))

    def _note_refusal(self) -> str:
        """The host is there and says that nobody listens."""
        if not self._search.is_succeeded:
            # A dead master replaces nobody, and nobody else does.
            self._notify(Heard(self._dialled_at))
        return "its agent is gone: its port refuses connections"

    def _headers(self) -> dict[str, str]:
        headers = {PROTOCOL_HEADER: str(PROTOCOL), VERSION_HEADER: __version__}
        if self._spec.token is not None:
            headers["Authorization"] = f"Bearer {self._spec.token}"
        return headers

    async def _converse(self, dial: Dial) -> str:
        """Be a member there until the connection ends; why it did."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=dial.connect_s)
        local = (self._manners.local_ip, 0) if self._manners.local_ip else None
        connector = aiohttp.TCPConnector(ssl=self._tls or True, local_addr=local)
        url = f"{'http' if self._tls is None else 'https'}://{dial.address}{MEMBER_PATH}"
        async with aiohttp.ClientSession(headers=self._headers(), timeout=timeout, connector=connector) as session:
            try:
                return await self._attend(session, url, dial)
            except aiohttp.WSServerHandshakeError as error:
                raise await self._refusal(session, url, error.status) from error
            except (aiohttp.ClientError, OSError) as error:
                # Later it cannot be how the job was set up, and a job that runs is not given up for a certificate.
                if not self._ever_connected and (
                    reason := await find_mismatch(error, self._address, secure=self._tls is not None)
                ):
                    raise Refused(reason) from error
                raise

    async def _attend(self, session: aiohttp.ClientSession, url: str, dial: Dial) -> str:
        async with asyncio.timeout(dial.greet_s):
            closing = aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
            link = await session.ws_connect(url, max_msg_size=MAX_MESSAGE_BYTES, compress=0, timeout=closing)
            hello = await _hear_first(link)
        try:
            if not self._search.may_follow(hello.master):
                is_usurped = self._search.is_usurped(hello.master)
                raise _NotFollowed("another master is at its address" if is_usurped else "")
            async with asyncio.timeout(None) as self._patience:
                await link.send_bytes(encode(self._register()))
                self._sent_at = {REGISTRATION: asyncio.get_running_loop().time()}
                self._await_answer(within_s=dial.accept_s)
                writer = asyncio.create_task(self._write(link))
                try:
                    return await self._read(link)
                finally:
                    writer.cancel()
                    # Why it could not write is why the reading ended.
                    await asyncio.gather(writer, return_exceptions=True)
        finally:
            await link.close()

    async def _refusal(self, session: aiohttp.ClientSession, url: str, status: int) -> Refused:
        """Ask once more, plainly, for the reason that a failed upgrade does not carry."""
        if status not in (401, 403, 426):
            return Refused(f"{self._address} answers (HTTP {status}), but it is not a holdfast master")
        async with asyncio.timeout(DIAL_S), session.get(url) as response:
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
            identity.deputy_port,
            self._search.version,
        )

    def _await_answer(self, *, within_s: float = math.inf) -> None:
        """Hang up when the oldest question that is still open has not been answered in time."""
        if self._patience is None or self._patience.expired():
            return
        oldest = next(iter(self._sent_at.values()), math.inf)
        # The outcome of an election takes longer than any other answer.
        silence_s = self._search.answer_s
        usual_s = max(silence_s - self._spec.rules.beat_s, silence_s / 2) if within_s == math.inf else math.inf
        until = oldest + min(self._manners.answer_s, within_s, usual_s)
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

    async def _read(self, link: aiohttp.ClientWebSocketResponse) -> str:
        async for frame in link:
            if frame.type is not aiohttp.WSMsgType.BINARY:
                continue
            match decode_from_master(frame.data):
                case Accepted():
                    self._connected = self._ever_connected = True
                    self._search.be_accepted()
                    if self._is_candidate:
                        self._notify(MasterHosted(True))
                    self._sent_at.clear()
                    self._await_answer()
                    self._hear(self._dialled_at)
                    self._fresh.set()
                case Denied() as denied:
                    raise Refused(
                        f"the master at {self._address} refused this node: {denied.reason}",
                        retry_after_s=denied.retry_after_s,
                    )
                case Ack() as ack:
                    if self._latest is not None and ack.seq >= self._latest.seq:
                        self._heeded.set()
                    if (sent_at := self._sent_at.pop(ack.seq, None)) is not None:
                        self._await_answer()
                        self._hear(sent_at)
                case Happened() as happened:
                    self._notify(happened)
                case Bequest() as bequest:
                    self._search.take_will(bequest.will, now=asyncio.get_running_loop().time())
                    self._notify(Bequeathed())
                    if self._seat is not None and self._search.is_next:
                        self._seat.prepare()
                case Moved() as moved:
                    self._search.redirect(moved.address, moved.master)
                    if self._seat is not None:
                        self._seat.leave(moved)
                    self._notify(MasterHosted(False))
                    return MOVED
                case Hello():
                    continue
                case order:
                    self._notify(OrderReceived(message_order(order)))
        return "the master closed the connection"


class _NotFollowed(Exception):
    """Who answers is not the master that this node follows or votes for; what that proves of the one it followed."""


async def _hear_first(link: aiohttp.ClientWebSocketResponse) -> Hello:
    frame = await link.receive()
    message = decode_from_master(frame.data) if frame.type is aiohttp.WSMsgType.BINARY else None
    if isinstance(message, Hello):
        return message
    raise ProtocolError("the master did not introduce itself")


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError)


def _explain(error: Exception) -> str:
    if (failure := ssl_error(error)) is not None:
        return explain(failure, whose="its certificate")
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number).lower() if number else str(error.os_error)
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(error) or type(error).__name__
