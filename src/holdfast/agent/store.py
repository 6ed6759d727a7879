"""The store through which workers find each other; `python -m holdfast.agent.store PORT FD` serves that of a node."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from holdfast.wire.names import ask_nobody

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


def open_store(host: str, port: int, *, listen_fd: int) -> TCPStore:
    """Serve at a socket that listens there, for as long as the store is kept."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    ask_nobody()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listen_fd)


def keep(*, port: int, listen_fd: int) -> NoReturn:
    """Serve until this process is killed."""
    _store = open_store("localhost", port, listen_fd=listen_fd)
    while True:
        signal.pause()


if __name__ == "__main__":
    keep(port=int(sys.argv[1]), listen_fd=int(sys.argv[2]))
