"""Those who are at the addresses of earlier masters are told where the master is now.

That is the lost one, if it comes back from silence; or a new one, whose node was started again at the old address.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import aiohttp
import msgspec

from holdfast.core.election import Candidacy
from holdfast.wire.messages import SUCCESSOR_PATH, Moved
from holdfast.wire.tls import Credentials, client_context

INTERVAL_S = 1.0
"""Between two rounds, for as long as the job lives: a node may be started again at any time."""
TRY_S = 1.0
"""For one answer; there is another round."""


async def tell_predecessors(candidacy: Candidacy, job_id: str, token: str | None, tls: Credentials | None) -> None:
    body = msgspec.json.encode(Moved(candidacy.master, candidacy.address, job_id))
    secure: ssl.SSLContext | bool = True if tls is None else client_context(tls)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=TRY_S)
    connector = aiohttp.TCPConnector(ssl=secure)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        while True:
            for address in candidacy.predecessors:
                url = f"{'http' if tls is None else 'https'}://{address}{SUCCESSOR_PATH}"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(url, data=body):
                        pass
            await asyncio.sleep(INTERVAL_S)
