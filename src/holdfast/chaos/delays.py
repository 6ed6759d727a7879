"""Delaying what a node sends, for kernels with and without netem.

A program in the kernel diverts it to a cable that leads nowhere; here it is read, held for a while, and sent as it was,
with a mark that lets it pass. When this process is gone, so is the program, and nothing is diverted any more.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import select
import socket
import threading
import time

from holdfast.chaos import packets

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ALL_PROTOCOLS = 3
FRAME_BYTES = 1 << 17
"""More than any: the kernel hands over what it would cut in pieces later."""
MOST_FRAMES = 20_000
"""Held at a time; more are lost, as in a queue of a real cable."""
MOST_BUFFER_BYTES = 32 << 20
MARK = 0xCA05
ENDS = ("chaos0", "chaos1")
"""Of the cable that leads nowhere."""
MAKE = (f"link add {ENDS[0]} type veth peer name {ENDS[1]}", f"link set {ENDS[0]} up", f"link set {ENDS[1]} up")


class Delayer:
    """To be made in the node's network; the thread that it starts may be anywhere."""

    def __init__(self, interface: str, *, delay_s: float, jitter_s: float) -> None:
        self._delay_s, self._jitter_s = delay_s, jitter_s
        self._random = random.Random(0)
        self._held: collections.deque[tuple[float, bytes]] = collections.deque()
        self._source = _open(ENDS[1], ALL_PROTOCOLS)
        self._source.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self._sink = _open(interface, 0)
        self._sink.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, name="holdfast-delay", daemon=True)
        self._thread.start()
        self._filters = packets.divert(interface, to=ENDS[0], mark=MARK)

    def close(self) -> None:
        """From now on nothing is late; what is held is lost."""
        for each in self._filters:
            each.close()
        os.close(self._end)
        self._thread.join()
        for end in (self._source, self._sink):
            end.close()
        os.close(self._ended)

    def _run(self) -> None:
        while True:
            wait_s = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            ready, _, _ = select.select([self._source.fileno(), self._ended], [], [], wait_s)
            if self._ended in ready:
                return
            if ready:
                self._take()
            while self._held and self._held[0][0] <= time.monotonic():
                # A frame that the interface does not take is lost, as on a cable.
                with contextlib.suppress(OSError):
                    self._sink.send(self._held.popleft()[1])

    def _take(self) -> None:
        frame = self._source.recv(FRAME_BYTES)
        if len(self._held) >= MOST_FRAMES:
            return
        due = time.monotonic() + self._delay_s + self._jitter_s * self._random.uniform(-1, 1)
        # In the order in which they came.
        self._held.append((max(due, self._held[-1][0]) if self._held else due, frame))


def _open(interface: str, protocol: int) -> socket.socket:
    """For whole frames, each with what the kernel has left to do for it."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, option, MOST_BUFFER_BYTES)
    end.bind((interface, protocol))
    return end
