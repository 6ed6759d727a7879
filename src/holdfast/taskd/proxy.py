"""TaskD's proxy: a port of this machine that leads to the manager's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.core.ids import Address
from holdfast.errors import JobError
from holdfast.spec.proxy import ProxySpec, load_proxy
from holdfast.taskd.convention import answers, log, not_before

CHUNK_BYTES = 64 << 10

_proxies: list[Proxy] = []
"""The one that runs, if any."""


@answers
def init_taskd_proxy(config: Mapping[str, Any]) -> None:
    """Listen, and pass on from now on; the manager may come later."""
    if _proxies:
        raise JobError("a proxy runs already; destroy_taskd_proxy ends it")
    spec = load_proxy(config)
    for note in spec.notes:
        log.warning("%s", note)
    _proxies.append(Proxy(spec))


@answers
def destroy_taskd_proxy() -> None:
    if not _proxies:
        raise not_before("init_taskd_proxy")
    _proxies.pop().close()


class Proxy:
    """Passes bytes on, both ways, in a thread of its own."""

    def __init__(self, spec: ProxySpec) -> None:
        listener = _listen(spec.listen)
        self._host, self._port = spec.upstream
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._live, args=(listener,), name="holdfast-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _live(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._pass_on, sock=listener)
        await self._ended.wait()
        server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
            except OSError:
                # Whoever dialled sees the connection end, as if there were no manager: there is none.
                return
            with contextlib.closing(up_writer):
                ways = [asyncio.create_task(_copy(reader, up_writer)), asyncio.create_task(_copy(up_reader, writer))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


def _listen(address: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        raise JobError(f"ListenAddr, ListenPort: {Address(*address)} cannot be used: {error.strerror}") from error
