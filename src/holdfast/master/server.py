"""The one port: members over WebSocket, people over HTTP."""

from __future__ import annotations

import asyncio
import hmac
import logging
from functools import partial

import msgspec
from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler, Middleware

from holdfast.core.ids import Address
from holdfast.core.job import AgentDied, NodeRegistered, StatusReported
from holdfast.errors import ProtocolError
from holdfast.master.ballot import Ballot
from holdfast.master.driver import Driver, Member
from holdfast.master.views import job_view
from holdfast.version import __version__
from holdfast.wire.identity import is_dead, machine_id
from holdfast.wire.messages import (
    MAX_MESSAGE_BYTES,
    MEMBER_PATH,
    PROTOCOL,
    PROTOCOL_HEADER,
    SUCCESSOR_PATH,
    VERSION_HEADER,
    Denied,
    Hello,
    Register,
    Reported,
    decode_from_agent,
    decode_moved,
    deputy_address,
    encode,
    store_address,
)
from holdfast.wire.tls import Credentials, Revocations, is_revoked

log = logging.getLogger(__name__)

API_PATH = "/api/"
"""Below it are answers that only the master of the job can give."""

REGISTER_TIMEOUT_S = 10.0
"""From the opening of a connection to its first message; then it is closed."""
CLOSE_S = 2.0
"""For the other side to agree that a connection is over; then it is cut."""
PROBE_S = 1.0
"""For a node to answer at the port that its agent holds; then it may be there."""
PROBES, PROBE_PAUSE_S = 8, 0.1
"""So often a port is asked for that does not refuse connections; then the node is left to its lease."""
MAX_STRANGERS = 1000
"""Addresses remembered so that each stranger is logged once."""


def make_app(
    driver: Driver, *, token: str | None, tls: Credentials | None = None, ballot: Ballot | None = None
) -> web.Application:
    """With a `ballot`, whoever comes first has to wait until the master is elected."""
    strangers = Strangers()
    checks = [_require_token(token, strangers)]
    if tls is not None:
        checks.insert(0, _refuse_revoked(Revocations(tls), strangers))
    app = web.Application(middlewares=[*checks, _send_on(driver)], client_max_size=64 << 10)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/api/job", partial(_job, driver=driver))
    app.router.add_get("/api/story", partial(_story, driver=driver))
    app.router.add_get("/api/events", partial(_events, driver=driver))
    app.router.add_get(MEMBER_PATH, partial(_member, driver=driver, ballot=ballot))
    app.router.add_post(SUCCESSOR_PATH, partial(_give_way, driver=driver))
    return app


class Strangers:
    """Logs each refused address once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def note(self, request: web.Request, reason: str) -> None:
        stranger = request.remote or "unknown"
        if stranger not in self._known and len(self._known) < MAX_STRANGERS:
            self._known.add(stranger)
            log.warning("refused %s: %s", stranger, reason)


def _refuse_revoked(revocations: Revocations, strangers: Strangers) -> Middleware:
    """Here and not in the handshake, so that whoever is refused can be told why."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_revoked(request.get_extra_info("peercert") or {}, revocations.current()):
            strangers.note(request, "its certificate is revoked")
            raise web.HTTPForbidden(text="its certificate (client_cert_path) is revoked")
        return await handler(request)

    return check


def _require_token(token: str | None, strangers: Strangers) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is None or request.path == "/healthz":
            return await handler(request)
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), token.encode()):
            return await handler(request)
        strangers.note(request, f"{'wrong' if given else 'no'} token")
        reason = "the token is wrong" if given else "a token is needed"
        raise web.HTTPUnauthorized(text=f"{reason} (HOLDFAST_TOKEN or --token-file)")

    return check


def _send_on(driver: Driver) -> Middleware:
    """Whoever asks for the job is sent to the master that has taken over."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if driver.successor is not None and request.path.startswith(API_PATH):
            raise web.HTTPTemporaryRedirect(f"{request.scheme}://{driver.successor.address}{request.path_qs}")
        return await handler(request)

    return check


async def _healthz(request: web.Request) -> web.Response:
    return web.json_response({"ok": True, "version": __version__})


async def _job(request: web.Request, driver: Driver) -> web.Response:
    body = msgspec.json.encode(job_view(driver.job, elapsed_s=driver.elapsed_s()))
    return web.Response(body=body, content_type="application/json")


async def _story(request: web.Request, driver: Driver) -> web.Response:
    """The story so far, whole."""
    return web.Response(body=msgspec.json.encode(list(driver.story)), content_type="application/json")


async def _events(request: web.Request, driver: Driver) -> web.StreamResponse:
    """Server-sent events: the story so far, then live; `Last-Event-ID` resumes."""
    last = request.headers.get("Last-Event-ID", "0")
    if not last.isdecimal():
        raise web.HTTPBadRequest(text=f"Last-Event-ID: {last!r} is not valid; it must be a number")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    async for entry in driver.entries(after=int(last)):
        data = msgspec.json.encode(entry).decode()
        try:
            await response.write(f"id: {entry['seq']}\nevent: {entry['kind']}\ndata: {data}\n\n".encode())
        except ConnectionError:
            break
    return response


async def _give_way(request: web.Request, driver: Driver) -> web.Response:
    """Another node says that the master is there now."""
    try:
        moved = decode_moved(await request.read())
    except ProtocolError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    if moved.job_id != driver.job.rules.job_id or not driver.move(moved):
        raise web.HTTPConflict(text="this master is not succeeded by that one")
    return web.Response()


async def _member(request: web.Request, driver: Driver, ballot: Ballot | None) -> web.StreamResponse:
    theirs = request.headers.get(PROTOCOL_HEADER, "none")
    if theirs != str(PROTOCOL):
        version = request.headers.get(VERSION_HEADER, "unknown")
        text = (
            f"the master is holdfast {__version__} (protocol {PROTOCOL}), "
            f"this node is holdfast {version} (protocol {theirs}); install the same version on every node"
        )
        raise web.HTTPUpgradeRequired(text=text)
    socket = web.WebSocketResponse(timeout=CLOSE_S, max_msg_size=MAX_MESSAGE_BYTES, compress=False, autoping=True)
    await socket.prepare(request)
    newest = driver.job.master if driver.successor is None else driver.successor.master
    await socket.send_bytes(encode(Hello(newest)))
    try:
        first = await asyncio.wait_for(socket.receive(), REGISTER_TIMEOUT_S)
        message = decode_from_agent(first.data) if first.type is WSMsgType.BINARY else None
    except (TimeoutError, ProtocolError):
        message = None
    if not isinstance(message, Register):
        await socket.close(message=b"the first message must register the node")
        return socket
    if driver.successor is not None:
        await socket.send_bytes(encode(driver.successor))
        await socket.close()
        return socket
    if ballot is not None and (trouble := await ballot.cast(message)):
        await socket.send_bytes(encode(Denied(f"it was not elected: {trouble}", 0.0)))
        await socket.close()
        return socket
    await _bury(driver, message)
    member = Member(message.nonce, hears=message.hears)
    driver.attach(member, seen=message.seen)
    peer = request.remote or "127.0.0.1"
    await driver.put(
        NodeRegistered(
            message.node,
            message.nonce,
            message.host,
            message.pid,
            message.num_workers,
            store_address(message, peer),
            message.wanted_rank,
            message.job_id,
            (message.min_nodes, message.max_nodes),
            message.status,
            message.computer,
            message.agreed,
            message.is_server,
            deputy_address(message, peer),
            message.machine,
        )
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(_write(socket, member))
            await _read(socket, message, driver)
            writing.cancel()
    finally:
        driver.detach(member)
        await socket.close()
    if driver.job.outcome is None and (evidence := await _prove_death(message, peer, driver)):
        await driver.put(AgentDied(message.node, message.nonce, evidence))
    return socket


async def _bury(driver: Driver, newcomer: Register) -> None:
    """Whoever stands in the way of a newcomer may have died while no master was there to see it, and others with it."""
    job = driver.job
    holder = job.members.get(newcomer.node)
    mates = job.of_role(is_server=newcomer.is_server)
    is_full = len(mates) >= (job.rules.num_servers if newcomer.is_server else job.rules.max_nodes)
    in_the_way = [holder] if holder is not None else mates if is_full else []
    if any(member.nonce == newcomer.nonce for member in in_the_way):
        return
    if any([await _has_died(member.registered) for member in in_the_way]):
        await bury_all(driver)


async def bury_all(driver: Driver) -> None:
    """Tell of all deaths that can be proven here together: what is done about one depends on who else lives."""
    for member in list(driver.job.members.values()):
        if await _has_died(member.registered):
            evidence = _death_of(member.registered.pid, driver)
            await driver.put(AgentDied(member.registered.node, member.nonce, evidence))


async def _has_died(registered: NodeRegistered) -> bool:
    return registered.pid_space == machine_id() and await is_dead(registered.pid, within_s=0.0)


def _death_of(pid: int, driver: Driver) -> str:
    return f"its {'agent' if driver.job.rules.is_launched else 'process'} (pid {pid}) is dead"


async def _prove_death(message: Register, peer: str, driver: Driver) -> str:
    """How it is known that the agent whose connection has ended is gone; empty if it is not."""
    if message.machine == machine_id():
        return _death_of(message.pid, driver) if await is_dead(message.pid) else ""
    address = deputy_address(message, peer)
    if address is None:
        return ""
    # Processes that share the agent's port may end a moment after it.
    for _ in range(PROBES):
        if not await _is_answered(address):
            return "its agent is gone: its port refuses connections"
        await asyncio.sleep(PROBE_PAUSE_S)
    return ""


async def _is_answered(address: Address) -> bool:
    """Whether a port may be held by somebody: silence proves nothing."""
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.close()
    return True


async def _read(socket: web.WebSocketResponse, registered: Register, driver: Driver) -> None:
    async for frame in socket:
        if frame.type is not WSMsgType.BINARY:
            continue
        try:
            message = decode_from_agent(frame.data)
        except ProtocolError as error:
            log.warning("%s: %s", registered.node, error)
            return
        if isinstance(message, Reported):
            await driver.put(StatusReported(registered.node, registered.nonce, message.seq, message.status))


async def _write(socket: web.WebSocketResponse, member: Member) -> None:
    while (message := await member.outbox.get()) is not None:
        try:
            await socket.send_bytes(encode(message))
        except ConnectionError:
            return
    await socket.close()
