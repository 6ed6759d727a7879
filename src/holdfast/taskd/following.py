"""Looking on at a job whose master somebody else runs, until it has ended."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from holdfast.core.ids import Address, Outcome
from holdfast.errors import JobError
from holdfast.spec.manager import ManagerSpec
from holdfast.taskd.convention import log
from holdfast.taskd.dialling import dialled, fetch_job

PAUSE_S = 0.5
"""Before a master is dialled again that hung up without a word. One that spoke is dialled at once: it may have been
killed, and the one that its node starts then may not live long."""


async def follow(spec: ManagerSpec) -> Outcome:
    """How the job ends that is served at the manager's address; it must be the manager's own."""
    address, job_id = Address(spec.host, spec.port), spec.rules.job_id
    async with dialled(address, token=spec.token, tls=spec.tls) as session:
        theirs = (await fetch_job(session, address))["job_id"]
        if theirs != job_id:
            raise JobError(f"job_id: the master at {address} serves job {theirs!r}, not {job_id!r}")
        log.warning("job %r has a master at %s already; this manager waits until it ends", job_id, address)
        return await _watch(session, address)


async def _watch(session: aiohttp.ClientSession, address: Address) -> Outcome:
    last = "0"
    while True:
        before = last
        try:
            async with session.get("/api/events", headers={"Last-Event-ID": last}) as response:
                async for line in response.content:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "id":
                        last = value
                    elif name == "data" and (outcome := _outcome(value)) is not None:
                        return outcome
        except aiohttp.ClientConnectorError as error:
            raise JobError(f"the master at {address} is gone, and with it how its job ended") from error
        except aiohttp.ClientError:
            # It was cut off in the middle, as a connection to a master that is killed.
            pass
        if last == before:
            await asyncio.sleep(PAUSE_S)


def _outcome(data: str) -> Outcome | None:
    entry = msgspec.json.decode(data)
    return msgspec.convert(entry["outcome"], Outcome) if entry["kind"] == "job_finished" else None
