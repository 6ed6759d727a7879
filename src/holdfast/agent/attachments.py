"""The Unix socket on which the SDK in this node's workers speaks to the agent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import ProtocolError
from holdfast.wire.sockets import bindable
from holdfast.wire.worker import LENGTH, MAX_BYTES, Attach, FromAgent, FromWorker, decode_from_worker, frame

CREDENTIALS = struct.Struct("3i")


class Attachments:
    """Workers that have called `holdfast.init()`, by process id."""

    def __init__(self, path: Path, notify: Callable[[int, FromWorker], None]) -> None:
        self.path = path
        self._notify = notify
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        with bindable(self.path) as name:
            self._server = await asyncio.start_unix_server(self._serve, name)
        self.path.chmod(0o600)

    def send(self, pid: int, message: FromAgent) -> None:
        if writer := self._writers.get(pid):
            writer.write(frame(message))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers.values():
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid = _peer(writer)
        try:
            while True:
                length = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
                if length > MAX_BYTES:
                    return
                message = decode_from_worker(await reader.readexactly(length))
                if isinstance(message, Attach):
                    self._writers[pid] = writer
                self._notify(pid, message)
        except (asyncio.IncompleteReadError, ConnectionError, ProtocolError):
            return
        finally:
            if self._writers.get(pid) is writer:
                del self._writers[pid]
            with contextlib.suppress(ConnectionError):
                writer.close()


def _peer(writer: asyncio.StreamWriter) -> int:
    """The process at the other end, as the kernel knows it."""
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid: int = CREDENTIALS.unpack(raw)[0]
    return pid
