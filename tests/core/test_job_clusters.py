"""Jobs whose nodes nobody launched: ids, windows, servers, rank tables, and settings that must be alike."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from driving import READY, Master, die, orders, refusals, registration, rules, tales

from holdfast.cluster.rules import MAX_REPAIRS
from holdfast.core import job
from holdfast.core.ids import Address, Finish, NodePhase, NodeStatus, Run, StepFault
from holdfast.core.job.state import MAX_IN_A_ROW
from holdfast.core.story import IncidentOpened, NodeLost, RankTableIgnored, Stopping, Waiting
from holdfast.spec.job import JobRules
from holdfast.spec.strategy import Strategy

RECOVERY = (Strategy.RETRY, Strategy.RECOVER, Strategy.EXIT)


def cluster(num_workers: int = 2, **changes: object) -> JobRules:
    common = {
        "min_nodes": num_workers,
        "max_nodes": num_workers,
        "max_spares": 0,
        "max_restarts": 0,
        "by_address": True,
    }
    return rules(**{**common, "strategies": RECOVERY, "rejection_s": 6.0, **changes})


def come(master: Master, node: str, **changes: object) -> list[job.Action]:
    address = changes.pop("address", "10.0.0.1")
    limits = (master.job.rules.min_nodes, master.job.rules.max_nodes)
    wanted = int(node.removeprefix("server-")) if node.removeprefix("server-").isdecimal() else None
    event = replace(registration(node, num_workers=1, wanted_rank=wanted), nodes=limits, store=Address(address, 0))
    return master.handle(replace(event, is_server=node.startswith("server-"), **changes))


def train(master: Master, *nodes: str) -> None:
    generation = master.job.generation
    for node in nodes:
        master.report(node, NodePhase.RUNNING, generation, pids=(1,), attached=True)


def seats(master: Master) -> list[str]:
    return [placement.node for placement in master.job.world.placements]


# --- settings -------------------------------------------------------------------------------------------------


def test_settings_that_differ_are_refused_each_with_both_values():
    master = Master(cluster(agreed={"WORKERS": "2", "TIMEOUT": "30", "SAME": "1"}))
    refused = refusals(come(master, "0", agreed={"WORKERS": "3", "SAME": "1"}))[0]
    assert refused.retry_after_s is None
    assert "WORKERS is 3 here and 2 at the scheduler" in refused.reason
    assert "TIMEOUT is unset here and 30 at the scheduler" in refused.reason
    assert "SAME" not in refused.reason
    assert not refusals(come(master, "0", agreed={"WORKERS": "2", "TIMEOUT": "30", "SAME": "1"}))


def test_who_has_no_address_is_refused():
    refused = refusals(come(Master(cluster()), "0", address="somewhere"))[0]
    assert refused.reason == "'somewhere' is not an address, and ranks follow from addresses"


# --- losses ---------------------------------------------------------------------------------------------------


def test_of_two_that_fall_silent_the_first_is_named_though_both_are_given_up_at_once():
    master = Master(cluster(3, strategies=(Strategy.EXIT,)))
    for node in "012":
        come(master, node)
    train(master, "0", "1", "2")
    for master.now, node in ((1.0, "2"), (2.0, "1"), (3.0, "0")):
        master.beat(node)
    actions = master.wait(2.0 + master.job.rules.lease_s)
    assert [tale.node for tale in tales(actions, NodeLost)] == ["2", "1"]
    assert [tale.reason.split(":")[0] for tale in tales(actions, Stopping)] == ["node 2 is lost"]


def test_whom_nobody_launched_somebody_else_has_to_start_again():
    master = Master(cluster(store=("10.0.0.1", 29500), max_restarts=1, join_timeout_s=math.inf))
    come(master, "0")
    come(master, "1")
    train(master, "0", "1")
    lost = master.handle(job.AgentDied("1", "1", "its process (pid 7) is dead"))
    assert tales(lost, Waiting) == [Waiting("a node in place of 1")], "for as long as it takes"
    [stopping] = tales(master.handle(job.AgentDied("0", "0", "its process (pid 8) is dead")), Stopping)
    assert stopping.decision == "await"


def test_who_has_not_been_told_of_the_first_world_begins_in_the_next_one():
    """The scheduler was lost when it had told node 0 only, and its store with it."""
    master = Master(cluster(store=("10.0.0.1", 29500)))
    come(master, "0")
    come(master, "1")
    master.handle(job.MasterStarted())
    fault = StepFault(0, "0", 0, "communication", "connection reset by peer")
    master.report("0", NodePhase.BROKEN, 1, pids=(1,), attached=True, faults=(fault,))
    told = orders(master.wait(1.0))
    assert {node: order.world.generation for node, order in told.items()} == {"0": 2, "1": 2}


# --- ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "addresses", [("10.0.0.9", "10.0.0.10", "10.0.0.10"), ("fd00::9", "fd00::a:0", "fd00::a:0")], ids=["IPv4", "IPv6"]
)
def test_ranks_follow_from_the_bytes_of_addresses_then_from_ids(addresses: tuple[str, ...]):
    master = Master(cluster(3))
    for node, address in zip("cba", addresses, strict=True):
        come(master, node, address=address)
    assert seats(master) == ["c", "a", "b"]


def test_numbers_are_ranks_and_the_others_fill_the_gaps():
    master = Master(cluster(3))
    for node in ("1", "b", "a"):
        come(master, node)
    assert seats(master) == ["a", "1", "b"]


def test_two_spellings_of_a_number_are_one_rank():
    master = Master(cluster(2))
    come(master, "1")
    assert refusals(come(master, "01"))[0].reason == "the rank of node id '01' is taken by node 1"


def test_a_rank_table_that_fits_wins_over_numbers():
    master = Master(cluster(3, rank_table={"10.0.0.1": (2, 0), "10.0.0.2": (1,)}))
    for node, address in (("0", "10.0.0.1"), ("1", "10.0.0.1"), ("2", "10.0.0.2")):
        come(master, node, address=address)
    assert seats(master) == ["1", "2", "0"]


def test_a_rank_table_that_does_not_fit_is_ignored_and_that_is_said():
    master = Master(cluster(2, rank_table={"10.0.0.1": (0,), "10.0.0.3": (1,)}))
    actions = come(master, "a", address="10.0.0.1") + come(master, "b", address="10.0.0.2")
    assert seats(master) == ["a", "b"]
    assert tales(actions, RankTableIgnored) == [RankTableIgnored("it has 0 ranks for 10.0.0.2, where 1 workers are")]


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (("0", "4", "server-1"), "(missing: 1, 2, 3; servers missing: 0, 2)"),
        (("a", "3"), "(here: 3, a; 3 missing; servers here: none; 3 missing)"),
        (("0", "1", "2", "3", "4", "server-x"), "(servers here: server-x; 2 missing)"),
    ],
)
def test_too_few_end_in_time_and_say_who_is_missing(here: tuple[str, ...], said: str):
    master = Master(cluster(5, num_servers=3, lease_s=1000.0))
    for node in here:
        come(master, node)
    actions = master.wait(100.0)
    assert master.job.outcome.reason.endswith(said)
    assert set(orders(actions)) == set(here)


# --- one id, two processes ------------------------------------------------------------------------------------


def test_another_process_with_an_id_waits_until_the_window_is_over_and_then_takes_it():
    master = Master(cluster())
    come(master, "0")
    come(master, "1")
    train(master, "0", "1")
    master.now = 5.9
    refused = refusals(come(master, "1", nonce="new"))[0]
    assert refused.reason == "node id '1' is held by pid 7 on host-1; free after 6 s without a sign of life"
    assert refused.retry_after_s == pytest.approx(0.1)
    master.now = 6.0
    actions = come(master, "1", nonce="new", host="elsewhere", pid=8)
    assert job.Accept("1", "new") in actions
    assert job.Refuse("1", "1", "pid 8 on elsewhere has taken node id '1'", None) in actions
    assert [tale.node for tale in tales(actions, NodeLost)] == ["1"]
    assert master.job.generation == 2, "the newcomer has the place of the other"
    assert seats(master) == ["0", "1"]


def test_who_was_replaced_does_not_come_back():
    master = Master(cluster(rejection_s=0.0))
    come(master, "0")
    come(master, "0", nonce="new")
    refused = refusals(come(master, "0"))[0]
    assert (refused.reason, refused.retry_after_s) == ("another process has taken node id '0'", None)
    assert master.job.members["0"].nonce == "new"


def test_a_heartbeat_opens_the_window_again_and_a_reconnect_is_never_refused():
    master = Master(cluster())
    come(master, "0")
    master.now = 5.0
    master.beat("0")
    master.now = 9.0
    assert refusals(come(master, "0", nonce="new"))[0].retry_after_s == pytest.approx(2.0)
    assert job.Accept("0", "0") in come(master, "0")


def test_there_is_no_window_for_the_dead():
    master = Master(cluster())
    come(master, "0")
    master.handle(job.AgentDied("0", "0", "its pid is gone"))
    assert job.Accept("0", "new") in come(master, "0", nonce="new")


# --- nobody watches -------------------------------------------------------------------------------------------


def test_without_heartbeats_nobody_is_lost_once_there_is_a_world():
    master = Master(cluster(heartbeat=False, strategies=(Strategy.EXIT,)))
    come(master, "0")
    come(master, "1")
    train(master, "0", "1")
    assert master.job.next_deadline() is None
    assert master.wait(1000.0) == []
    assert master.handle(job.AgentDied("1", "1", "its pid is gone")) == []
    fault = StepFault(0, "0", 3, "communication", "connection closed by peer")
    master.report("0", NodePhase.BROKEN, 1, pids=(1,), attached=True, faults=(fault,))
    master.wait(2000.0)
    assert master.job.phase is job.Phase.RUNNING


def test_without_heartbeats_silence_still_counts_before_there_is_a_world():
    master = Master(cluster(heartbeat=False))
    come(master, "0")
    assert [tale.node for tale in tales(master.wait(10.0), NodeLost)] == ["0"]


def test_without_heartbeats_the_dead_are_replaced_when_somebody_comes_for_their_place():
    master = Master(cluster(heartbeat=False))
    come(master, "0")
    come(master, "1")
    train(master, "0", "1")
    death = job.AgentDied("1", "1", "its pid is gone")
    assert not job.changes_nothing(death, master.handle(death), rules=master.job.rules), "a restarted master knows it"
    assert job.Accept("1", "new") in come(master, "1", nonce="new")
    assert master.job.generation == 2


# --- who comes back, and who does not --------------------------------------------------------------------------


def by_hand(num_workers: int = 2, **changes: object) -> Master:
    """A formed cluster, whose processes nobody starts again."""
    master = Master(cluster(num_workers, store=("10.0.0.9", 1), max_repairs=MAX_REPAIRS, **changes))
    nodes = [str(rank) for rank in range(num_workers)]
    for node in nodes:
        come(master, node)
    train(master, *nodes)
    return master


def lose_peer(master: Master, node: str) -> list[job.Action]:
    """A step fails on this node since a peer has gone, and nothing is heard of a loss."""
    generation = master.job.generation
    fault = StepFault(int(node), node, 20, "communication", "connection closed by peer")
    master.report(node, NodePhase.BROKEN, generation, pids=(1,), attached=True, faults=(fault,))
    return master.wait(master.now + 0.4)


def test_who_comes_back_has_its_own_place_though_another_one_is_vacant_too():
    master = by_hand(3, strategies=RECOVERY)
    for node in "12":
        die(master, node)
    come(master, "2", nonce="new 2")
    come(master, "x")
    assert seats(master) == ["0", "x", "2"]


def test_a_state_that_this_scheduler_does_not_know_is_refused_for_good():
    running = NodeStatus(NodePhase.RUNNING, 3, pids=(1,), attached=True)
    launched, by_itself = Master(cluster()), Master(cluster(store=("10.0.0.9", 1)))
    assert not refusals(come(launched, "0", status=running))
    refused = refusals(come(by_itself, "0", status=running))[0]
    assert refused.retry_after_s is None
    assert refused.reason == (
        "it is in generation 3, which this scheduler knows nothing of: "
        "the state of the cluster is lost, and all have to be started again"
    )


@pytest.mark.parametrize("is_gone", [False, True], ids=["about to go", "gone"])
def test_who_has_ended_well_too_early_is_waited_for(is_gone: bool):
    master = by_hand()
    master.report("1", NodePhase.SUCCEEDED, 1)
    if is_gone:
        assert tales(die(master, "1")) == [NodeLost("1", "it had ended with 0")]
    actions = lose_peer(master, "0")
    assert "connection closed by peer; 1 had ended with 0 by then" in tales(actions, IncidentOpened)[0].symptom
    if not is_gone:
        actions += die(master, "1")
    assert [tale.reason for tale in tales(actions, Waiting)] == ["a node in place of 1, for up to 100 s"]
    come(master, "1", nonce="new")
    assert seats(master) == ["0", "1"]
    train(master, "0")
    master.report("0", NodePhase.SUCCEEDED, master.job.generation)
    assert master.job.outcome is None, "the one that was started again has to end too"
    master.report("1", NodePhase.SUCCEEDED, master.job.generation)
    assert master.job.outcome.exit_code == 0


def test_without_recovery_a_good_end_that_was_too_early_is_named_and_nobody_waits_for_a_loss():
    master = by_hand(strategies=(Strategy.EXIT,))
    master.report("1", NodePhase.SUCCEEDED, 1)
    assert "1 had ended with 0 by then" in tales(lose_peer(master, "0"), Stopping)[0].reason


def test_without_recovery_one_that_may_be_lost_is_waited_for_before_who_ended_well_is_named():
    master = by_hand(3, strategies=(Strategy.EXIT,))
    master.report("2", NodePhase.SUCCEEDED, 1)
    assert tales(lose_peer(master, "0"), Stopping) == []
    for master.now, nodes in ((5.0, "02"), (9.0, "02")):
        master.beat(*nodes)
    actions = master.wait(10.0)
    assert tales(actions, Stopping)[0].reason.startswith("node 1 is lost: silent for 10 s")


def test_another_incarnation_of_one_that_ended_well_has_one_place_when_it_is_needed():
    master = by_hand(3)
    master.report("1", NodePhase.SUCCEEDED, 1)
    die(master, "1")
    come(master, "1", nonce="new 1", host="elsewhere")
    die(master, "2")
    assert master.job.phase is job.Phase.RUNNING
    come(master, "2", nonce="new 2")
    assert seats(master) == ["0", "1", "2"]
    assert master.job.world.placements[1].host == "elsewhere"


def test_a_restarted_scheduler_knows_who_had_ended_well_and_gone():
    """What an event does is done again from the journal: so it has to be there."""
    master = by_hand()
    master.report("1", NodePhase.SUCCEEDED, 1)
    death = job.AgentDied("1", "1", "its pid is gone")
    assert not job.changes_nothing(death, master.handle(death), rules=master.job.rules)
    master = by_hand()
    master.report("1", NodePhase.SUCCEEDED, 1)
    for master.now in (5.0, 9.0):
        master.beat("0")
    master.now = 10.0
    passed = master.job.passing(now=10.0)
    assert passed.silent == ("1",)
    assert not job.changes_nothing(passed, master.handle(passed), rules=master.job.rules)


def test_when_the_last_is_lost_after_the_others_have_ended_well_the_reason_is_true():
    master = by_hand(max_restarts=1)
    master.report("1", NodePhase.SUCCEEDED, 1)
    die(master, "1")
    assert "no live worker holds the state" in tales(die(master, "0"), Stopping)[0].reason


def test_a_process_that_fails_each_time_it_is_started_costs_nobody_else_anything():
    master = by_hand()
    for attempt in range(1000):
        lose_peer(master, "0")
        die(master, "1")
        come(master, "1", nonce=f"new {attempt}")
        train(master, "0", "1")
    assert master.job.phase is job.Phase.RUNNING
    assert master.job.generation > 1000


def test_steps_that_fail_again_and_again_though_nobody_is_lost_end_it():
    master = by_hand(max_restarts=0)
    for _ in range(MAX_IN_A_ROW + 1):
        lose_peer(master, "0")
    assert master.job.phase is not job.Phase.RUNNING


# --- servers --------------------------------------------------------------------------------------------------


def formed(**changes: object) -> Master:
    master = Master(cluster(1, num_servers=2, **changes))
    come(master, "server-b")
    come(master, "0")
    assert master.job.phase is job.Phase.GATHERING
    assert master.job.waiting_reason == "1 of 1 nodes are here, 1 of 2 servers"
    come(master, "server-a")
    train(master, "0")
    return master


def test_servers_have_ranks_of_their_own_and_no_part_in_the_world():
    master = formed()
    assert seats(master) == ["0"]
    assert master.job.world.servers == ("server-a", "server-b")
    assert orders(master.beat("server-a")) == {"server-a": Run(master.job.world)}
    master.report("server-a", NodePhase.RUNNING, 1)
    assert orders(master.beat("server-a")) == {}
    assert refusals(come(master, "server-c"))[0].reason == "2 servers have joined already, and this is one too many"
    master.report("0", NodePhase.SUCCEEDED, 1)
    assert orders(master.beat("server-a")) == {"server-a": Finish(master.job.outcome)}
    assert master.job.outcome.exit_code == 0


def test_a_number_is_the_rank_of_a_server_too():
    master = Master(cluster(1, num_servers=2))
    for node in ("server-1", "server-0", "0"):
        come(master, node)
    assert master.job.world.servers == ("server-0", "server-1")
    refused = refusals(come(master, "server-2"))[0]
    assert refused.reason == "node id 2 is out of range: 2 servers have ids below 2"


def test_without_recovery_a_lost_server_ends_the_job():
    master = formed(strategies=(Strategy.EXIT,))
    master.handle(job.AgentDied("server-b", "server-b", "its pid is gone"))
    assert master.job.phase is job.Phase.STOPPING
    master.report("0", NodePhase.READY, 1)
    assert "node server-b is lost: its pid is gone" in master.job.outcome.reason


@pytest.mark.parametrize("name", ["server-b", "server-z"])
def test_with_recovery_a_lost_server_is_replaced_and_training_does_not_notice(name: str):
    master = formed()
    assert orders(master.handle(job.AgentDied("server-b", "server-b", "its pid is gone"))) == {}
    come(master, name, nonce="new", status=READY)
    assert master.job.world.servers == ("server-a", name)
    assert master.job.generation == 1


def test_servers_keep_their_ranks_when_all_workers_start_again():
    master = formed(max_restarts=1)
    master.handle(job.AgentDied("server-a", "server-a", "its pid is gone"))
    come(master, "server-z", nonce="new")
    assert master.job.world.servers == ("server-z", "server-b")
    master.handle(job.AgentDied("0", "0", "its pid is gone"))
    come(master, "0", nonce="new")
    assert master.job.generation == 2
    assert master.job.world.servers == ("server-z", "server-b")
