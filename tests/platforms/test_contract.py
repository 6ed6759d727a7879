"""What every platform promises."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from watched import WITHIN_S, Watched, order, play

from holdfast.core.fleet.events import NodeEnded, NodeStarted

STAY = ["sleep", "1000"]

pytestmark = pytest.mark.timeout(150)


def test_nodes_start_in_order_and_end_once(kind: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        for number in range(2):
            await it.platform.create(order(number))
        assert await it.next() == NodeStarted("node-0", "host-0")
        assert await it.next() == NodeStarted("node-1", "host-1")
        await it.platform.delete("node-0", grace_s=0.0)
        assert await it.next() == NodeEnded("node-0", signal=signal.SIGKILL)
        await it.platform.delete("node-0", grace_s=0.0)
        await it.platform.delete("node-7", grace_s=0.0)
        assert it.platform.capacity().used == 1

    play(scenario, kind, tmp_path, STAY)


def test_a_node_is_asked_to_leave_before_it_is_killed(kind: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0))
        await it.next()
        await it.platform.delete("node-0", grace_s=30.0)
        assert await it.next() == NodeEnded("node-0", signal=signal.SIGTERM)

    play(scenario, kind, tmp_path, STAY)


def test_a_node_without_room_is_pending_until_there_is(kind: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        for number in range(4):
            await it.platform.create(order(number))
        assert await it.next() == NodeStarted("node-0", "host-0")
        assert it.platform.capacity().used == 1
        await it.platform.delete("node-2", grace_s=30.0)
        assert await it.next() == NodeEnded("node-2"), "it never ran"
        await it.platform.delete("node-0", grace_s=0.0)
        assert await it.next() == NodeEnded("node-0", signal=signal.SIGKILL)
        assert await it.next() == NodeStarted("node-1", "host-0"), "the first that asked"
        it.platform.resize(2)
        assert await it.next() == NodeStarted("node-3", "host-1")

    play(scenario, kind, tmp_path, STAY, slots=1)


def test_a_host_in_quarantine_is_not_used(kind: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        await it.platform.create(order(0))
        await it.next()
        it.platform.quarantine("host-0")
        assert it.platform.find("node-0").host == "host-0", "who is there stays"
        await it.platform.delete("node-0", grace_s=0.0)
        await it.next()
        await it.platform.create(order(1))
        assert await it.next() == NodeStarted("node-1", "host-1")
        assert it.platform.capacity().quarantined == ("host-0",)

    play(scenario, kind, tmp_path, STAY, slots=2)


def test_room_is_kept_for_a_role_that_has_less_than_it_needs(kind: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        it.platform.reserve("worker", 1)
        it.platform.reserve("evaluator", 1)
        for number in range(2):
            await it.platform.create(order(number))
        assert await it.next() == NodeStarted("node-0", "host-0")
        await it.platform.create(order(2, role="evaluator"))
        assert await it.next() == NodeStarted("node-2", "host-1"), "though node-1 has waited longer"
        await it.platform.delete("node-2", grace_s=0.0)
        assert await it.next() == NodeEnded("node-2", signal=signal.SIGKILL)
        await it.platform.create(order(3, role="evaluator"))
        assert await it.next() == NodeStarted("node-3", "host-1"), "its room was not taken meanwhile"
        await it.platform.delete("node-3", grace_s=0.0)
        await it.next()
        it.platform.reserve("evaluator", 0)
        assert await it.next() == NodeStarted("node-1", "host-1"), "nothing is kept any more"

    play(scenario, kind, tmp_path, STAY, slots=2)


def test_while_one_starts_another_can_be_taken_back(kind: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        for number in range(3):
            await it.platform.create(order(number))
        it.platform.resize(3)
        assert await it.next() == NodeStarted("node-0", "host-0")
        await it.platform.delete("node-2", grace_s=0.0)
        while not isinstance(event := await it.next(), NodeEnded):
            assert isinstance(event, NodeStarted)
        assert event.node == "node-2"

    play(scenario, kind, tmp_path, STAY, slots=0)


def test_while_one_starts_all_can_be_closed(kind: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        for number in range(3):
            await it.platform.create(order(number))
        it.platform.resize(3)
        assert await it.next() == NodeStarted("node-0", "host-0")
        await asyncio.wait_for(it.platform.close(), WITHIN_S)
        ended: list[str] = []
        while len(ended) < 3:
            event = await it.next()
            ended += [event.node] if isinstance(event, NodeEnded) else []
        assert sorted(ended) == ["node-0", "node-1", "node-2"]

    play(scenario, kind, tmp_path, STAY, slots=0)


def test_closing_ends_all_and_ends_the_events(kind: str, tmp_path: Path):
    async def scenario(it: Watched) -> None:
        for number in range(2):
            await it.platform.create(order(number))
        await it.next()
        await it.platform.close()
        assert {(await it.next()).node for _ in range(2)} == {"node-0", "node-1"}
        assert it.platform.capacity().used == 0

    play(scenario, kind, tmp_path, STAY, slots=1)
