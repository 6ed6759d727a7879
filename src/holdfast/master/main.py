"""`python -m holdfast.master.main`: the master process.

Its settings come as one JSON line on standard input, never in argv: they may hold the token. The end of standard
input means that the node which hosts the master is gone, and ends it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.core.ids import Outcome
from holdfast.core.job import Job
from holdfast.errors import HoldfastError
from holdfast.master.driver import Driver
from holdfast.master.port import listening
from holdfast.master.server import make_app
from holdfast.spec.job import JobRules
from holdfast.stores.journal import Journal
from holdfast.wire.tls import Credentials

LINGER_S = 5.0
"""How long a finished master waits for its nodes to hang up; those that did not hear of the end then see it die."""


@dataclass(frozen=True, kw_only=True)
class MasterSettings:
    rules: JobRules
    listen_fd: int
    journal: str
    sole_nonce: str | None = None
    token: str | None = None
    tls: Credentials | None = None


async def serve(settings: MasterSettings, *, tied: bool = True) -> Outcome | None:
    """Serve one job until it has ended and its nodes have gone; its outcome.

    A master that is `tied` ends with its standard input too.
    """
    journal = Journal(Path(settings.journal))
    try:
        driver = Driver.restore(
            lambda now: Job(settings.rules, now=now, sole_nonce=settings.sole_nonce), journal=journal
        )
        listener = socket.socket(fileno=settings.listen_fd)
        listener.setblocking(False)
        app = make_app(driver, token=settings.token, tls=settings.tls)
        orphaned = asyncio.Event()
        loop = asyncio.get_running_loop()
        if tied:
            loop.add_reader(0, lambda: orphaned.set() if not os.read(0, 4096) else None)
        async with listening(app, listener, tls=settings.tls), asyncio.TaskGroup() as tasks:
            driving = tasks.create_task(driver.run())
            ended = tasks.create_task(driver.all_gone(linger_s=LINGER_S))
            alone = tasks.create_task(orphaned.wait())
            await asyncio.wait({ended, alone}, return_when=asyncio.FIRST_COMPLETED)
            for task in (driving, ended, alone):
                task.cancel()
        return driver.job.outcome
    finally:
        journal.close()


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="holdfast master: %(message)s", stream=sys.stderr)
    # Read by hand: a buffered reader would swallow what belongs to the end-of-input watch.
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return 0
        line += byte
    settings = msgspec.json.decode(bytes(line), type=MasterSettings)
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(settings))
    except HoldfastError as error:
        sys.stderr.write(f"holdfast master: {error}\n")
        return error.exit_code
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    # The node waits for this process: not for the interpreter to tidy up too.
    os._exit(main())
