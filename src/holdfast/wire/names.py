"""No questions to name servers on the way to a store.

Torch's store looks up the name of every host that it connects to or that connects to it, only to have it for its log,
and waits for the answer. Where a name server is slow or loses questions, as some do when many ask at once, that takes
seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from holdfast.wire import threads

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
HEADER_BYTES, MAX_BYTES = 12, 512
CHECK_S = 0.05
NO_SUCH_NAME = b"\x81\x83"
"""The flags of an answer that says so."""
RES_INIT = 1
"""The state is ready for use, with no other option."""


class _ResolverState(ctypes.Structure):
    """How the C library asks for names in one thread, as <resolv.h> has it: the parts up to the first name server."""

    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("num_servers", ctypes.c_int),
        ("server", ctypes.c_ubyte * 16),
    )


def ask_nobody() -> None:
    """Look names up in files only, in all of this process: for one in which no script of the user's runs."""
    with contextlib.suppress(AttributeError):  # A C library that has no such switch.
        ctypes.CDLL(None).__nss_configure_lookup(b"hosts", b"files")  # noqa: SLF001  public in <nss.h>


def without_names(make: Callable[[], T], *, check: Callable[[], None] = lambda: None) -> T:
    """What `make` returns or raises, called in a thread in which no address has a name; others' names stay.

    `check` is called now and then; when it raises, nobody waits for the thread any more.

    Each thread has name servers of its own. Those of this one are replaced by ourselves: without any, the lookup would
    fail instead of finding nothing, and torch would complain.
    """
    outcome: Future[T] = Future()
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))
    threading.Thread(target=_know_no_name, args=(server, outcome), name="holdfast-names", daemon=True).start()
    threads.start(_settle, outcome, make, server.getsockname(), name="holdfast-unnamed")
    while not wait([outcome], CHECK_S).done:
        check()
    return outcome.result()


def _know_no_name(server: socket.socket, outcome: Future[T]) -> None:
    """Answer for as long as somebody may ask: a question without an answer takes seconds."""
    with server:
        while not outcome.done():
            question, asker = server.recvfrom(MAX_BYTES)
            if len(question) >= HEADER_BYTES:
                server.sendto(question[:2] + NO_SUCH_NAME + question[4:], asker)


def _settle(outcome: Future[T], make: Callable[[], T], name_server: tuple[str, int]) -> None:
    try:
        _use_name_server(*name_server)
        outcome.set_result(make())
    except BaseException as error:  # noqa: BLE001  it is raised where `make` was asked for
        outcome.set_exception(error)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wake:
        wake.sendto(b"", name_server)


def _use_name_server(host: str, port: int) -> None:
    """Ask only there, in this thread."""
    library = ctypes.CDLL(None)
    try:
        library.__res_init()  # noqa: SLF001  public in <resolv.h>
        find_state = library.__res_state  # noqa: SLF001
    except AttributeError:  # Another C library than glibc.
        return
    find_state.restype = ctypes.c_void_p
    state = _ResolverState.from_address(find_state())
    server = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, socket.inet_aton(host))
    state.options, state.num_servers, state.server = RES_INIT, 1, (ctypes.c_ubyte * 16)(*server)
