"""Where a running job is asked, and told, what to do: HTTP on a socket that only its owner can open."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web

from holdfast.errors import HoldfastError
from holdfast.wire.sockets import bindable

LAST_WORDS_S = 0.5


class Controlled(Protocol):
    """What a job can be asked."""

    async def view(self) -> dict[str, Any]: ...

    async def nodes(self) -> list[dict[str, Any]]: ...

    def scale(self, role: str | None, *, num_nodes: int | None, slots: int | None) -> dict[str, Any]: ...

    def stop(self) -> dict[str, Any]: ...


class Scale(msgspec.Struct):
    role: str | None = None
    nodes: int | None = None
    slots: int | None = None


@asynccontextmanager
async def controlling(job: Controlled, path: Path) -> AsyncIterator[None]:
    """Serve meanwhile."""
    app = web.Application(client_max_size=64 << 10)
    app.router.add_get("/job", _answer(lambda request: job.view()))
    app.router.add_get("/nodes", _answer(lambda request: job.nodes()))
    app.router.add_post("/scale", _answer(lambda request: _scale(request, job)))
    app.router.add_post("/stop", _answer(lambda request: _stop(job)))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=LAST_WORDS_S)
    await runner.setup()
    listener = socket.socket(socket.AF_UNIX)
    unborn = path.with_name(f"{path.name}.new")
    with bindable(unborn) as name:
        listener.bind(name)
        os.chmod(name, 0o600)
    listener.listen()
    # Only now: who finds a socket on which nobody listens takes its job for dead.
    unborn.rename(path)
    await web.SockSite(runner, listener).start()
    try:
        yield
    finally:
        await runner.cleanup()


Act = Callable[[web.Request], Awaitable[Any]]


def _answer(act: Act) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            found = await act(request)
        except HoldfastError as error:
            return web.Response(status=400, text=str(error))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    return handle


async def _scale(request: web.Request, job: Controlled) -> dict[str, Any]:
    try:
        asked = msgspec.json.decode(await request.read(), type=Scale)
    except msgspec.MsgspecError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    return job.scale(asked.role, num_nodes=asked.nodes, slots=asked.slots)


async def _stop(job: Controlled) -> dict[str, Any]:
    return job.stop()
