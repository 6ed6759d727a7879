"""Looking on at a job whose master somebody else runs, until it has ended."""

from __future__ import annotations

import aiohttp
import msgspec

from holdfast.core.ids import Address, Outcome
from holdfast.errors import JobError
from holdfast.spec.manager import ManagerSpec
from holdfast.taskd.convention import log
from holdfast.taskd.dialling import dialled, fetch_job
from holdfast.wire.stream import follow_story


async def follow(spec: ManagerSpec, address: Address) -> Outcome:
    """How the job ends that is served there; it must be the manager's own."""
    job_id = spec.rules.job_id
    async with dialled(address, token=spec.token, tls=spec.tls) as session:
        theirs = (await fetch_job(session, address))["job_id"]
        if theirs != job_id:
            raise JobError(f"job_id: the master at {address} serves job {theirs!r}, not {job_id!r}")
        log.warning("job %r has a master at %s already; this manager waits until it ends", job_id, address)
        return await _watch(session, address)


async def _watch(session: aiohttp.ClientSession, address: Address) -> Outcome:
    try:
        async for entry in follow_story(session):
            if entry["kind"] == "job_finished":
                return msgspec.convert(entry["outcome"], Outcome)
    except aiohttp.ClientConnectorError as error:
        raise JobError(f"the master at {address} is gone, and with it how its job ended") from error
    raise AssertionError("a story goes on until it is left")
