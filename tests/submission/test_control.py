"""The socket of a running job."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from holdfast.submission.control import controlling


class Idle:
    """A job that nobody asks anything."""


def test_whoever_finds_the_socket_of_a_job_can_connect(tmp_path: Path):
    path, refused, looks = tmp_path / "job.sock", [], [True]

    def look(event: str, _: tuple) -> None:
        """At every step of the system, as another process may."""
        if looks and event.startswith(("os.", "socket.bind")) and path.exists():
            looks.clear()
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)):
                    refused.append(event)
            looks.append(True)

    async def serve() -> None:
        async with controlling(Idle(), path):
            assert os.listdir(tmp_path) == ["job.sock"]

    sys.addaudithook(look)
    asyncio.run(serve())
    looks.clear()
    assert not refused
