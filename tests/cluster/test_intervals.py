"""When a process speaks to its scheduler, as one sees it who listens in the scheduler's place."""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web
from clusters import StartCluster

from holdfast.core.ids import Address, Mastership, World
from holdfast.wire.messages import MEMBER_PATH, Accepted, Ack, Hello, Reported, RunOrder, decode_from_agent, encode

LOWER_S, UPPER_S, SLACK_S = 0.5, 0.8, 0.25
"""The slack is for a busy machine: a gap may be longer than it was meant to be, and the next one shorter."""
LATE_S = 10.0
"""One of many may be this late there."""
TOPO_TIMEOUT_S = 1.0
"""Shorter than the time for which nobody accepts: who has a place waits all the same."""
WORLD = World(1, 0, (), Address("127.0.0.1", 1), servers=("server-0",))


class Listener:
    """A scheduler that accepts anybody, answers as long as it is told to, and notes when things came."""

    def __init__(self) -> None:
        self.dialled_at: list[float] = []
        self.hung_up_at: list[float] = []
        self.beats: list[float] = []
        self.tries: list[float] = []
        self.peers: set[str | None] = set()
        self.answers = True
        self.accepts = True
        self._noted = asyncio.Event()

    def note(self, moments: list[float]) -> None:
        moments.append(time.monotonic())
        self._noted.set()

    async def come_to(self, count: int, moments: list[float]) -> None:
        async with asyncio.timeout(60.0):
            while len(moments) < count:
                self._noted.clear()
                await self._noted.wait()

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        self.note(self.dialled_at)
        self.peers.add(request.remote)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if not self.accepts:
            await socket.close()
            return socket
        await socket.send_bytes(encode(Hello(Mastership(0, ""))))
        async for frame in socket:
            if frame.type is not WSMsgType.BINARY or not self.answers:
                continue
            message = decode_from_agent(frame.data)
            if isinstance(message, Reported):
                self.note(self.beats)
                await socket.send_bytes(encode(Ack(message.seq)))
            else:
                await socket.send_bytes(encode(Accepted()))
                await socket.send_bytes(encode(RunOrder(WORLD)))
        self.note(self.hung_up_at)
        return socket

    async def run(self, port: int) -> web.AppRunner:
        app = web.Application()
        app.router.add_get(MEMBER_PATH, self.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner


@pytest.mark.timeout(240)
def test_heartbeats_and_tries_keep_their_intervals_and_a_silent_scheduler_is_dialled_again_for_ever(
    cluster: StartCluster, tmp_path: Path
) -> None:
    recovery = {"MS_ENABLE_RECOVERY": 1, "MS_RECOVERY_PATH": tmp_path, "MS_TOPO_TIMEOUT": TOPO_TIMEOUT_S}
    it = cluster(1, MS_SERVER_NUM=1, MS_RETRY_INTERVAL_LOWER=LOWER_S, MS_RETRY_INTERVAL_UPPER=UPPER_S, **recovery)
    process = it.server(0, MS_RECEIVE_MSG_TIMEOUT=1, MS_WORKER_IP="127.0.0.2")

    async def watch() -> Listener:
        listener = Listener()
        runner = await listener.run(it.port)
        try:
            await listener.come_to(8, listener.beats)
            listener.answers = False
            await listener.come_to(1, listener.hung_up_at)
            listener.accepts = False
            known = len(listener.dialled_at)
            await listener.come_to(known + 4, listener.dialled_at)
            listener.tries = listener.dialled_at[-4:]
            listener.accepts = listener.answers = True
            await listener.come_to(len(listener.beats) + 2, listener.beats)
        finally:
            await runner.cleanup()
        return listener

    listener = asyncio.run(watch())
    # The first report comes with the registration, out of turn.
    gaps = [later - earlier for earlier, later in pairwise(listener.beats[1:8])]
    gaps += [later - earlier for earlier, later in pairwise(listener.tries)]
    assert LOWER_S - SLACK_S <= statistics.median(gaps) <= UPPER_S + SLACK_S, gaps
    assert LOWER_S / 2 <= min(gaps) <= max(gaps) < LATE_S, gaps
    assert max(gaps) - min(gaps) > 0.01, "they are drawn at random"
    silence_s = listener.hung_up_at[0] - listener.beats[7]
    assert 1.0 - SLACK_S <= silence_s <= 1.0 + UPPER_S + LATE_S, "one unanswered report, then its timeout"
    assert listener.tries[-1] - listener.tries[0] > TOPO_TIMEOUT_S
    assert listener.peers == {"127.0.0.2"}
    assert process.process.poll() is None, process.story()
