"""What the master writes down, and what it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.core import job as core
from holdfast.core.ids import Address, NodePhase, NodeStatus
from holdfast.core.job.state import REFUSALS_TOLD
from holdfast.master.driver import Driver, Member
from holdfast.spec.job import JobRules
from holdfast.stores.journal import Journal
from holdfast.wire.messages import Denied

RULES = JobRules(job_id="ours", min_nodes=1, max_nodes=1)
NUM_STRANGERS = 3 * REFUSALS_TOLD
READY = NodeStatus(NodePhase.READY, 0)


def stranger(number: int) -> core.NodeRegistered:
    name = f"stranger-{number}"
    return core.NodeRegistered(name, name, "host", 7, 1, Address("host", 1), None, "theirs", (1, 1), READY)


async def refuse_them(driver: Driver) -> None:
    """Each registers, talks on although it was refused, and dies."""
    running = asyncio.create_task(driver.run())
    for number in range(NUM_STRANGERS):
        event = stranger(number)
        member = Member(event.nonce)
        driver.attach(member, seen=-1)
        await driver.put(event)
        await driver.put(core.StatusReported(event.node, event.nonce, 1, READY))
        await driver.put(core.AgentDied(event.node, event.nonce, "it is dead"))
        answers = 0
        while answers < 2:
            answers += isinstance(await member.outbox.get(), Denied)
        driver.detach(member)
    running.cancel()


def test_refused_nodes_do_not_fill_the_journal(tmp_path: Path):
    journal = Journal(tmp_path / "journal.db")
    driver = Driver.restore(lambda now: core.Job(RULES, now=now), journal=journal)
    asyncio.run(refuse_them(driver))
    # One more: that the job waits for nodes.
    assert len(list(journal.replay())) <= REFUSALS_TOLD + 1
    told = [entry["seq"] for entry in driver.story if entry["kind"] == "node_refused"]
    assert len(told) == REFUSALS_TOLD

    again = Driver.restore(lambda now: core.Job(RULES, now=now), journal=journal)
    journal.close()
    assert list(again.story)[: len(driver.story)] == list(driver.story), "a master that comes back tells the same story"
