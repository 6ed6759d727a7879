"""A job's story as it happens, from its master over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

PAUSE_S = 0.5
"""Before a master is dialled again that hung up without a word. One that spoke is dialled at once: it may have been
killed, and the one that its node starts then may not live long."""


MAX_MOVES = 10
"""So many masters may have succeeded each other since an address was written down; each says where the next one is."""


@asynccontextmanager
async def get(
    session: aiohttp.ClientSession, path: str, *, headers: Mapping[str, str] | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """What the master answers, also if it has moved. A redirect of aiohttp's own would leave out the token."""
    url = path
    for _ in range(MAX_MOVES):
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status != HTTPStatus.TEMPORARY_REDIRECT:
                yield response
                return
            url = response.headers["Location"]
    raise aiohttp.ClientError(f"the master has moved more than {MAX_MOVES} times")


async def follow_story(session: aiohttp.ClientSession) -> AsyncIterator[dict[str, Any]]:
    """Every entry once, also of masters that are killed and started again, or that have moved; without end.

    Raises `ClientConnectorError` when nobody listens there any more.
    """
    last = "0"
    while True:
        before = last
        try:
            async with get(session, "/api/events", headers={"Last-Event-ID": last}) as response:
                async for line in response.content:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "id":
                        last = value
                    elif name == "data":
                        yield msgspec.json.decode(value)
        except aiohttp.ClientConnectorError:
            raise
        except aiohttp.ClientError:
            # It was cut off in the middle, as a connection to a master that is killed.
            pass
        if last == before:
            await asyncio.sleep(PAUSE_S)
