"""`python -m holdfast.master.main`: the master process.

Its settings come as one JSON line on standard input, never in argv: they may hold the token. The end of standard
input means that the node which hosts the master is gone, and ends it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.election import Candidacy
from holdfast.core.ids import Address, Mastership, Outcome
from holdfast.core.job import EndRequested, Job
from holdfast.errors import HoldfastError, NotElected, Stopped
from holdfast.master.ballot import Ballot
from holdfast.master.driver import Driver
from holdfast.master.port import listening
from holdfast.master.server import bury_all, make_app
from holdfast.master.successor import tell_predecessors
from holdfast.spec.job import JobRules
from holdfast.stores.journal import Journal
from holdfast.wire.messages import Moved
from holdfast.wire.tls import Credentials

LINGER_S = 5.0
"""How long a finished master waits for its nodes to hang up; those that did not hear of the end then see it die."""


@dataclass(frozen=True, kw_only=True)
class MasterSettings:
    rules: JobRules
    listen_fd: int
    journal: str
    sole_nonce: str | None = None
    host: str = ""
    """The node that hosts the master; empty if it is no node of the job."""
    id: str = ""
    token: str | None = None
    tls: Credentials | None = None
    client_tls: Credentials | None = None
    candidacy: Candidacy | None = None
    """Set for a master that takes over from a lost one, if it is elected."""
    successor: Moved | None = None
    """Set for one that was succeeded, and only tells who comes where the master is."""

    @property
    def mastership(self) -> Mastership:
        return Mastership(0, self.id) if self.candidacy is None else self.candidacy.master


async def serve(
    settings: MasterSettings,
    *,
    tied: bool = True,
    tell: Callable[[dict[str, Any]], None] = lambda _: None,
    stopped_by: Collection[signal.Signals] = (),
) -> Outcome | Address | None:
    """Serve one job until it has ended and its nodes have gone; its outcome, or where another master has taken over.

    A master that is `tied` ends with its standard input too; until then it tells who comes where the other one is.
    `tell` is called with every new entry of the story. The first of the signals `stopped_by` ends the job too, unless
    its nodes would wait for this master to be started again; the second one waits for nobody.
    """
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in stopped_by:
        loop.add_signal_handler(number, signals.put_nowait, number)
    received: list[signal.Signals] = []
    journal = Journal(Path(settings.journal))
    try:
        candidacy = settings.candidacy
        elapsed_s = 0.0 if candidacy is None else candidacy.will.elapsed_s
        driver = Driver.restore(
            lambda now: _make_job(settings, now=now), journal=journal, elapsed_s=elapsed_s, tell=tell
        )
        if settings.successor is not None:
            driver.give_way(settings.successor)
        is_new = driver.job.world is None and settings.successor is None
        ballot = Ballot(candidacy) if candidacy is not None and is_new else None
        listener = socket.socket(fileno=settings.listen_fd)
        listener.setblocking(False)
        app = make_app(driver, ballot=ballot, token=settings.token, tls=settings.tls)
        orphaned = asyncio.Event()
        if tied:
            loop.add_reader(0, lambda: orphaned.set() if not os.read(0, 4096) else None)
        async with listening(app, listener, tls=settings.tls):
            if ballot is not None:
                driver.inherit(await ballot.decide())
            async with asyncio.TaskGroup() as tasks:

                async def heed_signals() -> None:
                    while True:
                        received.append(number := await signals.get())
                        if settings.rules.replaces or len(received) > 1:
                            orphaned.set()
                        elif driver.job.outcome_after_stop is None:
                            await driver.put(EndRequested(128 + number, f"the scheduler got {number.name}"))

                serving = [tasks.create_task(driver.run()), tasks.create_task(heed_signals())]
                if driver.is_restored:
                    serving.append(tasks.create_task(bury_all(driver)))
                if candidacy is not None:
                    telling = tell_predecessors(candidacy, settings.rules.job_id, settings.token, settings.client_tls)
                    serving.append(tasks.create_task(telling))
                ended = tasks.create_task(driver.all_gone(linger_s=_linger_s(settings.rules)))
                alone = tasks.create_task(orphaned.wait())
                moved = tasks.create_task(driver.moved.wait())
                await asyncio.wait({ended, alone, moved}, return_when=asyncio.FIRST_COMPLETED)
                for task in serving:
                    task.cancel()
                await driver.wake_readers()
                if tied and driver.successor is not None:
                    await alone
                for waiting in (ended, alone, moved):
                    waiting.cancel()
    except* HoldfastError as group:
        # One is enough to say why.
        raise group.exceptions[0] from None
    finally:
        journal.close()
    if received and driver.job.outcome is None:
        raise Stopped(received[-1])
    return driver.job.outcome or (driver.successor.address if driver.successor is not None else None)


def _linger_s(rules: JobRules) -> float:
    """Longer where nodes are not started again and may be about to come back, so far apart as their tries are."""
    return LINGER_S if rules.is_launched else LINGER_S + rules.beat_s + rules.beat_spread_s


def _make_job(settings: MasterSettings, *, now: float) -> Job:
    return Job(settings.rules, now=now, sole_nonce=settings.sole_nonce, master=settings.mastership, host=settings.host)


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
    except NotElected as error:
        # Its node goes on looking for a master, and says so if that takes long.
        return error.exit_code
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
