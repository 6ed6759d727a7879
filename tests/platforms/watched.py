"""Platforms under test: the fake, and this machine with and without its means."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from jobs import until

from holdfast.core.fleet.actions import NodeOrder
from holdfast.platforms.api import NodeEvent, Platform
from holdfast.platforms.fake import FakePlatform
from holdfast.platforms.local.cgroups import Cgroups, find_hierarchy, group_name
from holdfast.platforms.local.keeper import Keeper
from holdfast.platforms.local.network import Network, obstacle
from holdfast.platforms.local.platform import LocalPlatform, Recipe

WITHIN_S = 20.0
GIB = 1 << 30
ROLES = ("worker", "evaluator")


def order(number: int, *, rank: int | None = None, memory_bytes: int | None = None, role: str = "worker") -> NodeOrder:
    return NodeOrder(f"node-{number}", number, number if rank is None else rank, memory_bytes, role)


@dataclass
class Watched:
    """A platform, and what it says."""

    platform: Platform
    directory: Path
    events: asyncio.Queue[NodeEvent]

    async def next(self) -> NodeEvent:
        return await asyncio.wait_for(self.events.get(), WITHIN_S)

    def output(self, node: str) -> str:
        return (self.directory / f"{node}.log").read_text()

    async def output_has(self, node: str, text: str) -> str:
        """Wait for a line of a node."""
        log = self.directory / f"{node}.log"

        def look() -> str | None:
            found = log.read_text() if log.exists() else ""
            return found if text in found else None

        return await asyncio.to_thread(until, look, within_s=WITHIN_S, what=f"{text!r} of {node}")


@contextlib.asynccontextmanager
async def open_platform(
    kind: str, directory: Path, command: list[str], *, slots: int | None = None, cpu: float | None = None
) -> AsyncIterator[Watched]:
    """`fake`, `plain` (nodes share all), or `apart` (each has a network and limits of its own)."""
    events: asyncio.Queue[NodeEvent] = asyncio.Queue()

    async def follow(platform: Platform) -> None:
        async for event in platform.watch():
            events.put_nowait(event)

    keeper, cgroups, network = None, None, None
    if kind == "apart":
        hierarchy = find_hierarchy()
        assert hierarchy is not None
        cgroups = Cgroups(hierarchy, group_name(os.getpid()))
        cgroups.open()
        keeper = Keeper(network=True, groups=list(cgroups.roots.values()))
        network = Network(keeper)

    def open_output(node: NodeOrder) -> tuple[int, int]:
        fd = os.open(directory / f"{node.name}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        return fd, fd

    recipe = Recipe(
        job_id=f"test-{os.getpid()}",
        command=lambda node, address: [word.replace("NAME", node.name).replace("HOST", address) for word in command],
        env=lambda node: dict(os.environ),
        directory=directory / "nodes",
        open_output=open_output,
        cpu=cpu,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            platform: Platform = (
                FakePlatform(slots=slots)
                if kind == "fake"
                else LocalPlatform(
                    dict.fromkeys(ROLES, recipe), tasks=tasks, slots=slots, network=network, cgroups=cgroups
                )
            )
            following = tasks.create_task(follow(platform))
            try:
                yield Watched(platform, directory, events)
            finally:
                await platform.close()
                await asyncio.wait_for(following, WITHIN_S)
    finally:
        if keeper is not None:
            keeper.close()


def why_not_apart() -> str:
    return obstacle() or ("" if find_hierarchy() else "no control groups can be made here")


Scenario = Callable[[Watched], Awaitable[None]]


def play(scenario: Scenario, kind: str, directory: Path, command: list[str], **options: object) -> None:
    async def run() -> None:
        async with open_platform(kind, directory, command, **options) as watched:  # type: ignore[arg-type]
            await scenario(watched)

    asyncio.run(run())
