"""Certificates that are about to expire, told by a process that has no console of ours."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.agent.channel import Channel

T = TypeVar("T")


async def with_reminders(channel: Channel | None, body: Coroutine[Any, Any, T]) -> T:
    """Await `body`; meanwhile say what has to be renewed."""
    if channel is None:
        return await body
    reminding = asyncio.create_task(channel.remind(_say))
    try:
        return await body
    finally:
        reminding.cancel()


def _say(text: str) -> None:
    sys.stderr.write(f"holdfast: {text}\n")
