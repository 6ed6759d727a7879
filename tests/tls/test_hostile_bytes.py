"""Whatever strangers send to the port: it answers or closes, stays small, and the job goes on undisturbed.

Random, but from fixed seeds. With TLS, strangers send the same before the handshake and, with a certificate, after it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from certs import PASSWORDS, Files
from jobs import HOLDFAST, free_port, kill, start, until

WAIT = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
"""
UPGRADE = (
    b"GET /members HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Holdfast-Protocol: 2\r\nHoldfast-Version: 0\r\n\r\n"
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CLOSING = b"\x88"
"""How the frame begins with which a WebSocket is closed: the other side may wait a little for ours."""
NUM_EACH = 20
NUM_SLOW = 100
ANSWER_S = 30.0
"""For the port to answer or close: it is patient for 5 s."""
MAX_GROWTH = 64 << 20

pytestmark = pytest.mark.timeout(180)


class Port:
    """The port of a running job, as strangers reach it."""

    def __init__(self, number: int, inside: ssl.SSLContext | None) -> None:
        self.number = number
        self.inside = inside

    def dial(self, *, inside: bool = True) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.number), timeout=ANSWER_S)
        if self.inside is None or not inside:
            return plain
        return self.inside.wrap_socket(plain, server_hostname="127.0.0.1")

    def throw(self, data: bytes, *, inside: bool = True, then_wait: bool = True) -> bytes:
        """Send this and hang up, or wait for the other side to; what came back."""
        came = b""
        # Closed in our face, before or after we have sent everything: all the same.
        with contextlib.suppress(ConnectionError, ssl.SSLError), self.dial(inside=inside) as connection:
            connection.sendall(data)
            while then_wait and (part := connection.recv(65536)):
                came += part
                then_wait = CLOSING not in came.partition(b"\r\n\r\n")[2]
        return came


@pytest.fixture(scope="module", params=["plain", "tls"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    """One job for all that is thrown. In the end it must be as it was: nobody lost, nothing restarted."""
    directory = tmp_path_factory.mktemp(request.param)
    script = directory / "train.py"
    script.write_text(WAIT)
    number, files = free_port(), Files(directory / "tls")
    secure = request.param == "tls"
    flags = ["--start-method", "spawn", "--rdzv-endpoint", f"127.0.0.1:{number}"]
    flags += ["--tls-config", files.config] if secure else []
    job = start([HOLDFAST, "run", *flags, str(script)], directory=directory, env=PASSWORDS)
    try:
        job.wait_for_output("ready")
        master = job.wait_for_process("master")
        before = resident_bytes(master)
        port = Port(number, files.client() if secure else None)
        yield port
        assert b'"ok": true' in port.throw(HEALTH)
        assert job.find("master") == master, job.story()
        assert resident_bytes(master) < before + MAX_GROWTH
        assert "Traceback" not in job.err, job.err
        assert len(job.err.splitlines()) < 20, job.err
        for pid in job.wait_for_workers().values():
            kill(pid, signal.SIGUSR1)
        assert job.wait() == 0, job.story()
        kinds = [entry["kind"] for entry in job.events() if entry["kind"] != "node_refused"]
        assert kinds == ["node_joined", "world_formed", "workers_started", "job_finished"]
    finally:
        job.destroy()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def frame(data: bytes, *, opcode: int = 2, size: int | None = None, masked: bool = True) -> bytes:
    """A WebSocket frame that may lie about its size."""
    size = len(data) if size is None else size
    length = bytes([size | masked << 7]) if size < 126 else bytes([127 | masked << 7]) + struct.pack("!Q", size)
    return bytes([0x80 | opcode]) + length + (bytes(4) if masked else b"") + data


def register(rng: random.Random, **changes: object) -> bytes:
    """A first message as an agent would send it, with other values."""
    status = {"phase": "ready", "generation": 0, "failures": [], "pids": [], "reason": "", "end_job": None}
    fields = {
        "type": "Register",
        "node": "stranger",
        "nonce": f"{rng.getrandbits(64):x}",
        "host": "h",
        "machine": "m",
        "pid": 1,
        "num_workers": 1,
        "store_host": None,
        "store_port": 1,
        "wanted_rank": None,
        "job_id": "another job",
        "min_nodes": 1,
        "max_nodes": 1,
        "status": status,
        "seen": -1,
        "computer": "c",
        "agreed": {},
        "is_server": False,
    }
    return msgspec.msgpack.encode(fields | changes)


def test_random_bytes(port: Port):
    rng = random.Random(1)
    for _ in range(NUM_EACH):
        noise = rng.randbytes(rng.choice((1, 7, 100, 5000, 70_000)))
        port.throw(noise, inside=False, then_wait=False)
        port.throw(noise, then_wait=False)
        port.throw(b"GET /" + noise.hex().encode()[:60] + b" HTTP/1.1\r\n\r\n" + noise, then_wait=False)
    assert b"400" in port.throw(b"\x00nonsense\r\n\r\n")
    assert b"404" in port.throw(b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


def test_requests_that_are_too_large(port: Port):
    assert b" 400 " in port.throw(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n")
    assert b" 400 " in port.throw(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n")
    many = b"".join(b"X-%d: y\r\n" % number for number in range(50_000))
    port.throw(b"GET /healthz HTTP/1.1\r\n" + many + b"\r\n")
    endless = b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n" + b"x" * (8 << 20)
    port.throw(endless, then_wait=False)


def test_truncated_requests_and_frames(port: Port):
    rng = random.Random(2)
    first = frame(register(rng))
    for whole in (UPGRADE, UPGRADE + first, UPGRADE + frame(rng.randbytes(200), size=70_000)):
        for _ in range(NUM_EACH):
            port.throw(whole[: rng.randrange(len(whole))], then_wait=False)


def test_frames_that_make_no_sense(port: Port):
    rng = random.Random(3)
    for number in range(NUM_EACH):
        assert b"101 Switching" in port.throw(UPGRADE + frame(rng.randbytes(rng.randrange(300))))
        port.throw(UPGRADE + frame(b"x", opcode=3 + number % 5))
        port.throw(UPGRADE + frame(b"x", masked=False))
        bad = bytearray(register(rng))
        bad[rng.randrange(len(bad))] = rng.randrange(256)
        port.throw(UPGRADE + frame(bytes(bad)), then_wait=False)
    assert b"must register" in port.throw(UPGRADE + frame(b"hello", opcode=1))


def test_messages_that_are_too_large(port: Port):
    for size in (17 << 20, 1 << 40, (1 << 63) - 1):
        came = port.throw(UPGRADE + frame(b"x" * 1000, size=size))
        assert b"101 Switching" in came
        assert struct.pack("!H", 1009) in came, "closed as too big, before it has come"
    port.throw(UPGRADE + frame(b"x" * (15 << 20)))


def test_a_node_of_another_job_is_told_so(port: Port):
    with port.dial() as connection:
        connection.sendall(UPGRADE + frame(register(random.Random(4))))
        came = b""
        while b"Denied" not in came:
            part = connection.recv(65536)
            assert part, came
            came += part


def test_slow_connections(port: Port):
    """They say a little, or nothing, and hold on; the port does not wait for them."""
    rng = random.Random(5)
    whole = [b"", UPGRADE, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
    with contextlib.ExitStack() as stack:
        slow = []
        for number in range(NUM_SLOW):
            connection = stack.enter_context(port.dial(inside=number % 2 == 0))
            data = whole[number % 3]
            connection.sendall(data[: rng.randrange(len(data) - 1) if data else 0])
            slow.append(connection)
        assert b'"ok": true' in port.throw(HEALTH), "others are served meanwhile"
        for connection in slow:
            connection.settimeout(ANSWER_S)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while connection.recv(65536):
                    pass
    until(lambda: b'"ok": true' in port.throw(HEALTH), within_s=30, what="an answer")
