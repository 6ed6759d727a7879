"""The one port: members over WebSocket, people over HTTP."""

from __future__ import annotations

import asyncio
import hmac
import logging

import msgspec
from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler, Middleware

from holdfast.core.job import AgentDied, NodeRegistered, StatusReported
from holdfast.errors import ProtocolError
from holdfast.master.driver import Driver, Member
from holdfast.master.views import job_view
from holdfast.version import __version__
from holdfast.wire.identity import is_dead, machine_id
from holdfast.wire.messages import (
    MAX_MESSAGE_BYTES,
    MEMBER_PATH,
    PROTOCOL,
    PROTOCOL_HEADER,
    VERSION_HEADER,
    Register,
    Reported,
    decode_from_agent,
    encode,
    store_address,
)
from holdfast.wire.tls import Credentials, Revocations, is_revoked

log = logging.getLogger(__name__)

REGISTER_TIMEOUT_S = 10.0
"""From the opening of a connection to its first message; then it is closed."""
CLOSE_S = 2.0
"""For the other side to agree that a connection is over; then it is cut."""
MAX_STRANGERS = 1000
"""Addresses remembered so that each stranger is logged once."""


def make_app(driver: Driver, *, token: str | None, tls: Credentials | None = None) -> web.Application:
    strangers = Strangers()
    checks = [_require_token(token, strangers)]
    if tls is not None:
        checks.insert(0, _refuse_revoked(Revocations(tls), strangers))
    app = web.Application(middlewares=checks, client_max_size=64 << 10)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/api/job", lambda request: _job(driver))
    app.router.add_get("/api/story", lambda request: _story(driver))
    app.router.add_get("/api/events", lambda request: _events(request, driver))
    app.router.add_get(MEMBER_PATH, lambda request: _member(request, driver))
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


async def _healthz(request: web.Request) -> web.Response:
    return web.json_response({"ok": True, "version": __version__})


async def _job(driver: Driver) -> web.Response:
    body = msgspec.json.encode(job_view(driver.job, elapsed_s=driver.elapsed_s()))
    return web.Response(body=body, content_type="application/json")


async def _story(driver: Driver) -> web.Response:
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


async def _member(request: web.Request, driver: Driver) -> web.StreamResponse:
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
    try:
        first = await asyncio.wait_for(socket.receive(), REGISTER_TIMEOUT_S)
        message = decode_from_agent(first.data) if first.type is WSMsgType.BINARY else None
    except (TimeoutError, ProtocolError):
        message = None
    if not isinstance(message, Register):
        await socket.close(message=b"the first message must register the node")
        return socket
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
    if driver.job.outcome is None and message.machine == machine_id() and await is_dead(message.pid):
        evidence = f"its agent (pid {message.pid}) is dead"
        await driver.put(AgentDied(message.node, message.nonce, evidence))
    return socket


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
