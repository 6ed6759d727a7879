"""From one strategy to the next: what did not help is not tried again, and nothing goes on without end."""

from __future__ import annotations

import pytest
from driving import PIDS, Master, crash, die, failure, rules, tales, train

from holdfast.core import job
from holdfast.core.ids import NodePhase, StepFault
from holdfast.core.job.dumping import DUMP_S
from holdfast.core.story import IncidentClosed, IncidentOpened, JobFinished, Stopping
from holdfast.spec.strategy import Strategy

ALL = tuple(Strategy)
RUNNING, BROKEN = NodePhase.RUNNING, NodePhase.BROKEN
LINK = StepFault(1, "a", 5, "link", "LinkDown: eth0")
LIMIT_S = 900.0


def trained(*nodes: str, least: int = 1, strategies: tuple[Strategy, ...] = ALL, **more: object) -> Master:
    found = rules(
        min_nodes=least,
        max_nodes=max(least, len(nodes)),
        strategies=strategies,
        lease_s=1e6,
        repair_timeout_s=LIMIT_S,
        **{"max_restarts": 1, **more},
    )
    master = Master(found)
    master.form(*nodes)
    train(master, *nodes)
    return master


def trip(master: Master, *faults: StepFault) -> list[job.Action]:
    return master.report("a", BROKEN, master.job.generation, pids=PIDS, attached=True, faults=faults)


def go_on(master: Master, *nodes: str) -> None:
    """The processes of a repaired world are there; none has committed a step."""
    for node in nodes:
        master.report(node, RUNNING, master.job.generation, pids=PIDS, attached=True)


def chosen(actions: list[job.Action]) -> list[str]:
    return [tale.strategy for tale in tales(actions, IncidentOpened)]


# --- a step that fails again and again ------------------------------------------------------------------------


def fail_again(master: Master) -> list[job.Action]:
    """A process that fails the same step again ends by its exception."""
    lost = failure(1, error="LinkDown: eth0", step=5)
    return master.report("a", BROKEN, master.job.generation, pids=(10, 0), attached=True, failures=(lost,))


def test_a_process_that_fails_its_step_again_after_another_try_is_replaced():
    master = trained("a")
    assert chosen(trip(master, LINK)) == ["retry"]
    go_on(master, "a")
    actions = fail_again(master)
    assert chosen(actions) == ["recover-in-place"]
    assert "no retry: the same exception was raised at the same step again" in tales(actions, IncidentOpened)[0].reason


@pytest.mark.parametrize("strategies", [ALL, (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.EXIT)])
def test_the_third_time_the_script_is_at_fault(strategies):
    master = trained("a", strategies=strategies)
    trip(master, LINK)
    go_on(master, "a")
    fail_again(master)
    go_on(master, "a")
    actions = trip(master, LINK)
    reasons = [tale.reason for tale in tales(actions) if isinstance(tale, IncidentOpened | Stopping)]
    assert ["the script is at fault" in reason for reason in reasons] == [True]
    if Strategy.DUMP in strategies:
        actions = train(master, "a")
    assert [tale.decision for tale in tales(actions, Stopping)] == ["finish"], "it is not restarted"


@pytest.mark.parametrize("phase", [BROKEN, NodePhase.DRAINING, NodePhase.READY])
def test_a_script_at_fault_is_not_restarted_either_where_its_last_step_cannot_be_saved(phase: NodePhase):
    master = trained("a", max_restarts=3)
    trip(master, LINK)
    go_on(master, "a")
    fail_again(master)
    go_on(master, "a")
    assert chosen(trip(master, LINK)) == ["dump"]
    lost = (failure(0, code=3), failure(1, code=3))
    stopping = tales(master.report("a", phase, master.job.generation, pids=(0, 0), failures=lost), Stopping)
    assert [(tale.decision, "the last step was not saved" in tale.reason) for tale in stopping] == [("finish", True)]


def test_where_no_process_may_be_replaced_the_script_is_at_fault_the_second_time():
    master = trained("a", strategies=(Strategy.RETRY, Strategy.EXIT))
    trip(master, LINK)
    go_on(master, "a")
    stopping = tales(fail_again(master), Stopping)
    assert [(tale.decision, "the script is at fault" in tale.reason) for tale in stopping] == [("finish", True)]


def test_another_fault_in_between_begins_anew():
    master = trained("a")
    trip(master, LINK)
    go_on(master, "a")
    assert chosen(trip(master, StepFault(0, "a", 5, "memory", "MemoryDamaged: x"))) == ["retry"]
    go_on(master, "a")
    assert chosen(trip(master, LINK)) == ["retry"]


# --- a repair that does not come to an end ---------------------------------------------------------------------


@pytest.mark.parametrize(("strategies", "level"), [(ALL, "dump"), ((Strategy.RECOVER_IN_PLACE, Strategy.EXIT), "exit")])
def test_a_repair_without_a_step_gives_way_to_the_next_level(strategies, level):
    master = trained("a", strategies=strategies)
    master.report("a", BROKEN, 1, pids=(10, 0), attached=True, failures=(crash(1, step=5),))
    assert master.job.next_deadline() == pytest.approx(master.now + LIMIT_S)
    go_on(master, "a")
    actions = master.wait(master.now + LIMIT_S)
    assert chosen(actions) == (["dump"] if level == "dump" else [])
    assert [tale.verdict for tale in tales(actions, IncidentClosed)] == (
        ["followed"] if level == "dump" else ["failed"]
    )
    reasons = [str(tale) for tale in tales(actions, IncidentOpened)] + [t.reason for t in tales(actions, Stopping)]
    assert f"generation 2 was not repaired within {LIMIT_S:g} s" in reasons[0]
    assert f"no step was committed within {LIMIT_S:g} s" in reasons[0]
    deadline = master.job.next_deadline()
    assert deadline is not None
    assert deadline > master.now


@pytest.mark.parametrize("phase", [RUNNING, NodePhase.SUCCEEDED])
def test_a_repair_that_is_done_has_no_deadline(phase: NodePhase):
    master = trained("a", "b")
    trip(master, LINK)
    train(master, "b")
    actions = master.report("a", phase, 2, pids=PIDS, attached=phase is RUNNING, committed=2)
    assert [tale.verdict for tale in tales(actions, IncidentClosed)] == ["repaired"]
    assert tales(master.wait(master.now + LIMIT_S)) == []


def test_the_time_without_a_master_does_not_count():
    master = trained("a")
    trip(master, LINK)
    master.now += LIMIT_S
    master.handle(job.MasterStarted())
    assert master.job.next_deadline() == pytest.approx(master.now + LIMIT_S)


# --- all the way ----------------------------------------------------------------------------------------------


def test_all_levels_one_after_the_other():
    master = trained("a", "b", "c", least=2, max_restarts=0)
    story: list[job.Action] = []
    # A step fails, and fails again.
    story += trip(master, LINK)
    go_on(master, "a", "b", "c")
    story += fail_again(master)
    train(master, "a", "b", "c")
    # A node is lost, and enough are left; another one, and too few are.
    story += die(master, "c")
    train(master, "a", "b")
    story += die(master, "b")
    # No node comes.
    story += master.wait(master.now + master.job.rules.join_timeout_s)
    # The last step cannot be saved.
    story += master.wait(master.now + DUMP_S)
    story += master.report("a", NodePhase.READY, master.job.generation)
    assert [(tale.strategy, tale.reason) for tale in tales(story, IncidentOpened)] == [
        ("retry", "no process is lost"),
        (
            "recover-in-place",
            "5 processes alive to take the state from; no retry: the same exception was raised at the same step again",
        ),
        (
            "elastic-training",
            "4 processes alive to go on with the same global batch; no retry: 2 processes lost; "
            "no recover-in-place: 1 node lost; no recover: no spare node, and 2 are enough to go on",
        ),
        (
            "recover",
            "2 processes alive to take the state from; no retry: 2 processes lost; no recover-in-place: 1 node lost",
        ),
        (
            "dump",
            "2 processes alive to save the last step from; no retry: 2 processes lost; "
            "no recover-in-place: 1 node lost; no recover: no node came within 100 s; "
            "no elastic-training: too few nodes are left",
        ),
    ]
    outcome = tales(story, JobFinished)[0].outcome
    assert outcome.reason == ("no node took the place of b within 100 s; the last step was not saved within 600 s")


def test_a_restart_is_the_last_level_where_saving_is_not_allowed():
    master = trained("a", strategies=tuple(s for s in Strategy if s is not Strategy.DUMP))
    both = (failure(0, code=3), failure(1, code=3))
    actions = master.report("a", BROKEN, 1, pids=(0, 0), attached=True, failures=both)
    assert [tale.decision for tale in tales(actions, Stopping)] == ["restart"]
