"""One node's workers when their world is repaired: who lives moves on, unless nobody has a state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import Master, Node, orders, reports, rules, train, world

from holdfast.core import job
from holdfast.core import workers as core
from holdfast.core.ids import NodePhase, Run, Stop

REPAIRED = replace(world(2), repairs=True)


@pytest.fixture
def node() -> Node:
    """Both workers of node `a` use the SDK."""
    found = Node()
    found.run()
    for pid in (11, 12):
        found.handle(core.WorkerAttached(pid))
        found.handle(core.StepCommitted(pid, 1, {}))
    return found


def test_workers_that_live_move_to_the_repaired_world(node: Node):
    node.handle(core.StepFailed(11, 1, 5, "link", "LinkDown"))
    assert node.status().phase is NodePhase.BROKEN
    assert node.order(Run(REPAIRED)) == [
        core.Invite(pid, local, REPAIRED, REPAIRED.placements[0]) for local, pid in enumerate((11, 12))
    ]


def test_that_its_workers_could_save_a_step_is_known_until_they_start_again(node: Node):
    assert not node.status().saves
    for pid in (11, 12):
        node.handle(core.StepCommitted(pid, 1, {}, saves=True))
    assert node.status().saves
    node.order(Run(REPAIRED))
    assert node.status().saves
    node.handle(core.StateLost(2))
    assert not node.status().saves
    for local_rank in (0, 1):
        node.exit(local_rank, None, signal=15)
    node.handle(core.Swept())
    node.run(3)
    assert (node.status().phase, node.status().saves) == (NodePhase.RUNNING, False)


@pytest.mark.parametrize("generation", [1, 2])
def test_a_state_that_nobody_holds_stops_the_workers_of_its_generation_only(node: Node, generation: int):
    node.order(Run(REPAIRED))
    actions = node.handle(core.StateLost(generation))
    assert [status.phase for status in reports(actions)] == ([NodePhase.DRAINING] if generation == 2 else [])
    if generation == 2:
        assert node.status().reason == "no rank holds a state to resume from"


def test_when_nobody_holds_a_state_all_workers_start_again_on_the_same_nodes():
    master = Master(rules(max_nodes=2, lease_s=1e6))
    master.form("a", "b")
    train(master, "a", "b")
    reason = "no rank holds a state to resume from"
    actions = master.report("a", NodePhase.DRAINING, 1, reason=reason)
    assert orders(actions) == {"b": Stop(1, "the group is being stopped")}
    for name in ("a", "b"):
        actions = master.report(name, NodePhase.READY, 1, reason=reason)
    again = orders(actions)["a"]
    assert isinstance(again, Run)
    assert not again.world.repairs, "whoever starts in it begins from the top, or from a checkpoint"
    assert {placement.node for placement in again.world.placements} == {"a", "b"}
    assert (master.job.phase, master.job.restart_count) == (job.Phase.RUNNING, 1)
