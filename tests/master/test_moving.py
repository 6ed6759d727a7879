"""People who ask a master that was succeeded are sent on to the one that took over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from holdfast.agent.asking import ask
from holdfast.core.ids import Address, Mastership, NodePhase, NodeStatus
from holdfast.core.job import Job, NodeRegistered
from holdfast.master.driver import Driver
from holdfast.master.server import make_app
from holdfast.spec.job import JobRules
from holdfast.stores.journal import Journal
from holdfast.wire.messages import Moved
from holdfast.wire.stream import follow_story

TOKEN = "t" * 32
RULES = JobRules(job_id="j", min_nodes=2, max_nodes=2)


READY = NodeStatus(NodePhase.READY, 0)


def registration(node: str) -> NodeRegistered:
    return NodeRegistered(node, node, node, 7, 1, Address(node, 1), None, "j", (2, 2), READY)


@asynccontextmanager
async def master(directory: Path, *, node: str) -> AsyncIterator[tuple[Driver, Address]]:
    """One with a node that has registered."""
    with contextlib.closing(Journal(directory / f"{node}.db")) as journal:
        driver = Driver.restore(lambda now: Job(RULES, now=now), journal=journal)
        running = asyncio.create_task(driver.run())
        await driver.put(registration(node))
        async with TestServer(make_app(driver, token=TOKEN)) as server:
            assert server.port is not None
            yield driver, Address("127.0.0.1", server.port)
        running.cancel()


async def read_through_a_move(directory: Path) -> list[str]:
    """The nodes of whose arrival a reader hears, and those that are there for one who asks."""
    heard: list[str] = []
    async with master(directory, node="old") as (old, there), master(directory, node="new") as (new, here):
        async with aiohttp.ClientSession(f"http://{there}", headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            async for entry in follow_story(session):
                heard += [entry["node"]] if entry["kind"] == "node_joined" else []
                if entry["kind"] == "node_joined" and len(heard) == 2:
                    break
                if entry["kind"] == "waiting":
                    old.give_way(Moved(Mastership(1, "new"), here, "j"))
                    await old.wake_readers()
                    await new.put(registration("newer"))
        return [*heard, *(await asyncio.to_thread(ask, str(there), "/api/job"))["nodes"]]


def test_readers_and_those_who_ask_reach_the_master_that_took_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    assert asyncio.run(asyncio.wait_for(read_through_a_move(tmp_path), 30.0)) == ["old", "newer", "new", "newer"]
