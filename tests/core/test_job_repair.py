"""Repairing a world in place: one incident after the other, each closed with a verdict, and an end to trying."""

from __future__ import annotations

import pytest
from driving import PIDS, Master, crash, die, failure, orders, park, placed, rules, tales, train

from holdfast.core import job
from holdfast.core.ids import NodePhase, Prepare, Resumption, Run, StepFault, WorkerFailure
from holdfast.core.job.dumping import DUMP_S
from holdfast.core.job.state import MAX_IN_A_ROW
from holdfast.core.story import IncidentClosed, IncidentOpened, JobFinished, Resumed
from holdfast.spec.strategy import Strategy

RUNNING, BROKEN = NodePhase.RUNNING, NodePhase.BROKEN
USUAL = tuple(strategy for strategy in Strategy if strategy is not Strategy.DUMP)
ONE_NODE = rules(min_nodes=1, max_nodes=1, strategies=USUAL, max_restarts=0, lease_s=1000.0)


@pytest.fixture
def master() -> Master:
    found = Master(ONE_NODE)
    found.form("a")
    found.report("a", RUNNING, 1, pids=PIDS, attached=True, committed=1)
    return found


def lose(master: Master, lost: WorkerFailure) -> list[job.Action]:
    pids = tuple(0 if rank == lost.rank else pid for rank, pid in enumerate(PIDS))
    return master.report("a", BROKEN, master.job.generation, pids=pids, attached=True, failures=(lost,))


def trip(master: Master, fault: StepFault) -> list[job.Action]:
    return master.report("a", BROKEN, master.job.generation, pids=PIDS, attached=True, faults=(fault,))


def commit(master: Master) -> list[job.Action]:
    generation = master.job.generation
    return master.report("a", RUNNING, generation, pids=PIDS, attached=True, committed=generation)


def test_a_lost_worker_is_replaced_in_a_world_of_the_next_generation(master: Master):
    actions = lose(master, crash(1, step=5))
    opened = tales(actions, IncidentOpened)
    assert [(tale.number, tale.generation, tale.strategy) for tale in opened] == [(1, 2, "recover-in-place")]
    order = orders(actions)["a"]
    assert isinstance(order, Run)
    assert (order.world.generation, order.world.repairs) == (2, True)
    assert tales(commit(master), IncidentClosed)[0].verdict == "repaired"


def test_where_new_workers_begin_is_told_once(master: Master):
    tell = {"pids": PIDS, "attached": True, "resumption": Resumption(1, 40, "resumed at step 40 from DIR")}
    told = master.report("a", RUNNING, 1, **tell) + master.report("a", RUNNING, 1, **tell, committed=1)
    assert tales(told, Resumed) == [Resumed(1, 40, "resumed at step 40 from DIR")]
    lose(master, crash(1, step=45))
    assert not tales(master.report("a", RUNNING, 2, **tell), Resumed), "the world after it has not looked"


def test_a_failed_step_without_a_loss_is_tried_again(master: Master):
    opened = tales(trip(master, StepFault(0, "a", 5, "memory", "MemoryDamaged: x")), IncidentOpened)
    assert [tale.strategy for tale in opened] == ["retry"]


def test_a_fault_during_a_repair_is_the_next_incident(master: Master):
    lose(master, crash(1, step=5))
    master.report("a", RUNNING, 2, pids=PIDS, attached=True)
    actions = lose(master, crash(0, step=5))
    assert [(tale.number, tale.verdict) for tale in tales(actions, IncidentClosed)] == [(1, "followed")]
    assert [tale.number for tale in tales(actions, IncidentOpened)] == [2]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failure(0, error="ValueError: bug", step=5), failure(1, error="ValueError: bug", step=5)),
        (crash(1, step=5), crash(1, step=5)),
        (crash(1, step=5, number=9, error="hung: rank 1"), crash(1, step=5, number=9, error="hung: rank 1")),
    ],
)
def test_the_same_fault_at_the_same_step_is_the_scripts_own(
    master: Master, first: WorkerFailure, second: WorkerFailure
):
    lose(master, first)
    master.report("a", RUNNING, 2, pids=PIDS, attached=True)
    actions = lose(master, second)
    assert tales(actions, IncidentOpened) == []
    assert "the script is at fault" in str(actions)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (failure(0, error="ValueError: bug", step=5), failure(0, error="ValueError: bug", step=6)),
        (failure(0, error="ValueError: bug", step=5), failure(0, error="ValueError: other", step=5)),
        (crash(0, step=5), crash(1, step=5)),
        (crash(1, step=0), crash(1, step=0)),
        (crash(0, step=5, number=9, error="hung: a\n  x"), crash(1, step=5, number=9, error="hung: b\n  x")),
        (crash(0, step=5, number=9, error=""), crash(0, step=5, number=9, error="")),
    ],
)
def test_another_fault_is_another_incident(master: Master, first: WorkerFailure, second: WorkerFailure):
    lose(master, first)
    master.report("a", RUNNING, 2, pids=PIDS, attached=True)
    assert [tale.number for tale in tales(lose(master, second), IncidentOpened)] == [2]


def test_repairs_that_never_lead_to_a_step_come_to_an_end(master: Master):
    for turn in range(MAX_IN_A_ROW):
        assert tales(lose(master, crash(turn % 2, step=turn)), IncidentOpened)
        master.report("a", RUNNING, master.job.generation, pids=PIDS, attached=True)
    actions = lose(master, crash(0, step=99))
    assert tales(actions, IncidentOpened) == []
    assert "too many repairs" in str(actions)


def test_a_committed_step_makes_good_for_the_repairs_before_it(master: Master):
    for turn in range(MAX_IN_A_ROW + 5):
        assert tales(lose(master, crash(turn % 2, step=turn)), IncidentOpened), turn
        commit(master)


def test_when_no_worker_is_left_the_job_ends_and_says_why(master: Master):
    both = (crash(0, step=5), crash(1, step=5))
    master.report("a", BROKEN, 1, pids=(0, 0), attached=True, failures=both)
    actions = master.report("a", NodePhase.READY, 1, failures=both)
    finished = tales(actions, JobFinished)
    assert finished
    assert "no live worker holds the state" in finished[0].outcome.reason


# --- lost nodes -----------------------------------------------------------------------------------------------

TWO_NODES = rules(min_nodes=2, max_nodes=2, strategies=USUAL, max_restarts=3, lease_s=1000.0)


def two_nodes(*spares: str) -> Master:
    master = Master(TWO_NODES)
    master.form("a", "b")
    for node in ("a", "b"):
        master.report(node, RUNNING, 1, pids=PIDS, attached=True, committed=1)
    master.join(*spares)
    return master


def test_a_spare_takes_the_ranks_of_a_lost_node_at_once():
    master = two_nodes("c")
    actions = die(master, "b")
    assert [tale.strategy for tale in tales(actions, IncidentOpened)] == ["recover"]
    assert placed(actions, "a") == placed(actions, "c") == {"a": 0, "c": 2}
    assert master.job.phase is job.Phase.RUNNING
    for node in ("a", "c"):
        actions = master.report(node, RUNNING, 2, pids=PIDS, attached=True, committed=2)
    assert [tale.verdict for tale in tales(actions, IncidentClosed)] == ["repaired"]
    assert master.job.restart_count == 0


def test_without_a_spare_the_others_wait_for_one_and_faults_meanwhile_wait_too():
    master = two_nodes()
    assert orders(die(master, "b")) == {}
    lost = crash(1, step=5)
    assert orders(master.report("a", BROKEN, 1, pids=(10, 0), attached=True, failures=(lost,))) == {}
    actions = master.join("b", nonce="again")
    assert placed(actions, "b") == {"a": 0, "b": 2}
    assert len(tales(actions, IncidentOpened)) == 0, "it is the same incident"


def test_when_the_first_node_is_lost_its_successor_serves_the_store():
    master = two_nodes("c")
    actions = die(master, "a")
    assert placed(actions, "b") == {"c": 0, "b": 2}
    order = orders(actions)["b"]
    assert isinstance(order, Run)
    assert order.world.store.host == "host-c"


def test_a_node_that_never_comes_ends_the_wait():
    master = two_nodes()
    die(master, "b")
    assert master.job.next_deadline() == pytest.approx(master.now + TWO_NODES.join_timeout_s)
    actions = master.wait(master.now + TWO_NODES.join_timeout_s)
    assert "no node took the place of b" in str(actions)
    assert master.job.phase is not job.Phase.RUNNING


def test_another_loss_during_the_wait_is_the_next_incident_and_both_are_filled_together():
    master = Master(rules(min_nodes=3, max_nodes=3, strategies=USUAL, lease_s=1000.0))
    master.form("a", "b", "c")
    for node in ("a", "b", "c"):
        master.report(node, RUNNING, 1, pids=PIDS, attached=True, committed=1)
    die(master, "b")
    actions = die(master, "c")
    assert [tale.verdict for tale in tales(actions, IncidentClosed)] == ["followed"]
    assert orders(master.join("d")) == {}
    assert placed(master.join("e"), "a") == {"a": 0, "d": 2, "e": 4}


def test_another_loss_while_a_spare_takes_over_is_the_next_incident_too():
    master = Master(rules(min_nodes=3, max_nodes=3, strategies=USUAL, lease_s=1000.0))
    master.form("a", "b", "c")
    for node in ("a", "b", "c"):
        master.report(node, RUNNING, 1, pids=PIDS, attached=True, committed=1)
    master.join("d", "e")
    assert placed(die(master, "b"), "a") == {"a": 0, "d": 2, "c": 4}
    assert placed(die(master, "c"), "a") == {"a": 0, "d": 2, "e": 4}
    assert orders(die(master, "d")) == {}, "its successor is waited for"
    assert placed(master.join("f"), "a") == {"a": 0, "f": 2, "e": 4}
    lost = crash(1, step=5)
    actions = master.report("a", BROKEN, 4, pids=(10, 0), attached=True, failures=(lost,))
    assert placed(actions, "a") == {"a": 0, "f": 2, "e": 4}
    assert master.job.restart_count == 0


@pytest.mark.parametrize("attached", [True, False])
def test_the_loss_of_all_holders_of_the_state_is_a_restart(attached: bool):
    master = two_nodes("c")
    if attached:
        die(master, "a")
        master.now += 1.0
    else:
        master.report("a", RUNNING, 1, pids=PIDS, attached=False)
    die(master, "b")
    assert master.job.phase is not job.Phase.RUNNING or master.job.restart_count > 0


# --- smaller and larger worlds --------------------------------------------------------------------------------


def elastic(*nodes: str, strategies: tuple[Strategy, ...] = USUAL, attached: bool = True) -> Master:
    master = Master(rules(min_nodes=1, max_nodes=3, strategies=strategies, lease_s=1000.0))
    master.form(*nodes)
    train(master, *nodes, attached=attached)
    return master


def test_enough_nodes_without_a_spare_go_on_at_once_as_a_smaller_world():
    master = elastic("a", "b", "c")
    actions = die(master, "b")
    assert [tale.strategy for tale in tales(actions, IncidentOpened)] == ["elastic-training"]
    assert placed(actions, "a") == placed(actions, "c") == {"a": 0, "c": 2}
    assert tales(train(master, "a", "c"), IncidentClosed)[0].verdict == "repaired"
    actions = die(master, "a")
    assert placed(actions, "c") == {"c": 0}
    assert orders(actions)["c"].world.store.host == "host-c", "the first node serves the store"
    assert tales(train(master, "c"), IncidentClosed)[0].verdict == "repaired"
    assert master.job.restart_count == 0


@pytest.mark.parametrize("is_prepared", [True, False])
def test_only_a_spare_that_is_prepared_takes_the_place_where_the_others_can_go_on(is_prepared: bool):
    master = elastic("a", "b", "c")
    master.join("d")
    if is_prepared:
        park(master, "d")
    actions = die(master, "b")
    assert placed(actions, "a") == ({"a": 0, "d": 2, "c": 4} if is_prepared else {"a": 0, "c": 2})
    if not is_prepared:
        assert tales(train(master, "a", "c"), IncidentClosed)[0].verdict == "repaired"
        assert placed(park(master, "d"), "a") == {"a": 0, "c": 2, "d": 4}


def test_two_are_lost_at_once_and_one_spare_is_there_so_the_others_go_on_and_take_it_in():
    master = elastic("a", "b", "c")
    master.join("d")
    park(master, "d")
    master.now += 500.0
    train(master, "a")
    park(master, "d")
    actions = master.wait(1001.0)
    assert placed(actions, "a") == {"a": 0}
    assert placed(train(master, "a"), "a") == {"a": 0, "d": 2}


def test_where_workers_cannot_go_on_in_a_smaller_world_they_start_again():
    master = elastic("a", "b", "c", attached=False)
    assert tales(die(master, "b"), IncidentOpened) == []
    assert master.job.phase is job.Phase.STOPPING


def test_a_node_that_leaves_is_not_waited_for():
    master = elastic("a", "b", "c")
    actions = master.report("b", NodePhase.LEAVING, 1, pids=PIDS, reason="SIGTERM received on b")
    assert placed(actions, "a") == {"a": 0, "c": 2}
    assert not tales(master.report("b", NodePhase.LEFT, 1, reason="SIGTERM received on b"), IncidentOpened)


def test_a_spare_gets_the_ranks_of_a_node_that_leaves_when_its_workers_are_gone():
    master = two_nodes("c")
    actions = master.report("b", NodePhase.LEAVING, 1, pids=PIDS, reason="SIGTERM received on b")
    assert [tale.strategy for tale in tales(actions, IncidentOpened)] == ["recover"]
    assert not orders(actions)
    assert placed(master.report("b", NodePhase.LEFT, 1, reason="SIGTERM received on b"), "a") == {"a": 0, "c": 2}


def test_a_node_that_comes_is_prepared_and_then_taken_in_without_a_restart():
    master = elastic("a", "b")
    master.join("c")
    order = orders(master.report("c", NodePhase.READY, 0))["c"]
    assert isinstance(order, Prepare)
    assert not orders(park(master, "c", 1)).keys() & {"a", "b"}, "nobody waits for what is not there yet"
    actions = park(master, "c")
    assert [tale.symptom for tale in tales(actions, IncidentOpened)] == ["c joined"]
    assert placed(actions, "a") == placed(actions, "c") == {"a": 0, "b": 2, "c": 4}
    assert tales(train(master, "a", "b", "c"), IncidentClosed)[0].verdict == "repaired"
    assert master.job.restart_count == 0


def test_who_comes_during_a_repair_is_taken_in_after_it():
    master = elastic("a", "b", "c")
    die(master, "b")
    master.join("d")
    assert not orders(park(master, "d")).keys() & {"a", "c"}
    actions = train(master, "a", "c")
    assert [tale.verdict for tale in tales(actions, IncidentClosed)] == ["repaired"]
    assert placed(actions, "a") == {"a": 0, "c": 2, "d": 4}


def test_a_node_that_comes_to_workers_without_the_sdk_makes_them_start_again():
    master = elastic("a", "b", attached=False)
    assert not orders(master.join("c")).get("c")
    master.now += master.job.rules.last_call_s
    master.handle(job.TimePassed())
    assert master.job.phase is job.Phase.STOPPING


# --- the last step --------------------------------------------------------------------------------------------


def with_dump(*nodes: str, min_nodes: int) -> Master:
    master = Master(
        rules(min_nodes=min_nodes, max_nodes=min_nodes, strategies=tuple(Strategy), max_restarts=0, lease_s=1000.0)
    )
    master.form(*nodes)
    train(master, *nodes)
    return master


def dumping(actions: list[job.Action], node: str) -> bool:
    order = orders(actions)[node]
    return isinstance(order, Run) and order.world.dumps


def test_when_no_node_comes_the_others_save_the_last_step_and_the_job_ends():
    master = with_dump("a", "b", min_nodes=2)
    die(master, "b")
    master.now += master.job.rules.join_timeout_s
    actions = master.handle(job.TimePassed())
    opened = tales(actions, IncidentOpened)
    assert [tale.strategy for tale in opened] == ["dump"]
    assert "no recover: no node came within 100 s" in opened[0].reason
    assert dumping(actions, "a")
    assert placed(actions, "a") == {"a": 0}
    assert [tale.verdict for tale in tales(train(master, "a"), IncidentClosed)] == ["dumped"]
    finished = tales(master.report("a", NodePhase.READY, 3), JobFinished)
    assert "no node took the place of b within 100 s; the last step was saved" in finished[0].outcome.reason


def test_the_scripts_own_fault_is_not_run_again_but_the_step_before_it_is_saved():
    master = with_dump("a", min_nodes=1)
    bug = failure(0, error="ValueError: bug", step=5)
    lose(master, bug)
    master.report("a", RUNNING, 2, pids=PIDS, attached=True)
    assert dumping(lose(master, bug), "a")
    commit(master)
    finished = tales(master.report("a", NodePhase.READY, 3), JobFinished)
    assert "the last step was saved" in finished[0].outcome.reason


@pytest.mark.parametrize("trouble", ["another loss", "too slow"])
def test_a_step_that_cannot_be_saved_ends_the_job_nevertheless(trouble: str):
    master = with_dump("a", min_nodes=1)
    bug = failure(0, error="ValueError: bug", step=5)
    lose(master, bug)
    master.report("a", RUNNING, 2, pids=PIDS, attached=True)
    lose(master, bug)
    if trouble == "another loss":
        actions = lose(master, crash(1, step=5))
    else:
        master.now += DUMP_S
        actions = master.handle(job.TimePassed())
    assert [tale.verdict for tale in tales(actions, IncidentClosed)] == ["failed"]
    finished = tales(master.report("a", NodePhase.READY, 3), JobFinished)
    assert "the last step was not saved" in finished[0].outcome.reason
