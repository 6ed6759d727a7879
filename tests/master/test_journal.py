"""What the master writes down, and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import job as core
from holdfast.core.ids import Address, NodePhase, NodeStatus
from holdfast.core.job.state import REFUSALS_TOLD
from holdfast.errors import JobError
from holdfast.master.driver import Driver, Member
from holdfast.spec.job import JobRules
from holdfast.stores.journal import Journal
from holdfast.wire.messages import Denied

TABLE = {"10.0.0.2": (1,), "10.0.0.1": (0, 2)}
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rejection_s": 5.0}, "HOLDFAST_REJECTION_WINDOW is 5 now and 30 there; "),
        ({"rank_table": {}}, "HOLDFAST_RANK_TABLE_FILE is none now and 10.0.0.1=0,2 10.0.0.2=1 there; "),
        ({"rank_table": dict(reversed(TABLE.items()))}, ""),
    ],
    ids=["window", "table", "order"],
)
def test_a_master_that_comes_back_with_another_setting_names_its_variable(
    changes: dict[str, Any], said: str, tmp_path: Path
):
    rules = replace(RULES, rejection_s=30.0, rank_table=TABLE)
    with contextlib.closing(Journal(tmp_path / "journal.db")) as journal:
        Driver.restore(lambda now: core.Job(rules, now=now), journal=journal)
        journal.append(core.TimePassed(), now=1.0, wall=2.0)
        other = replace(rules, **changes)
        with pytest.raises(JobError) if said else contextlib.nullcontext() as raised:
            Driver.restore(lambda now: core.Job(other, now=now), journal=journal)
    assert said in str(raised and raised.value)
