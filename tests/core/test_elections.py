"""Who goes on when the master is lost: the search of each node, the election, and what is inherited."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import READY, Master, orders, registration, rules, tales
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import job
from holdfast.core.election import Candidacy, Election
from holdfast.core.ids import Address, Mastership, NodePhase, NodeStatus, Run, Stop
from holdfast.core.job.dumping import DUMP_S
from holdfast.core.job.succession import GENERATION_GAP, MAX_DEPUTIES, make_will
from holdfast.core.search import DEPUTY_DIAL_S, Dial, Search
from holdfast.core.story import IncidentOpened, Isolated, MasterMoved, NodeLost, Stopping
from holdfast.spec.strategy import Strategy

HOME = Address("host-a", 1)
OURS = Mastership(0, "a")
ELASTIC = rules(min_nodes=1, max_nodes=5, strategies=(Strategy.ELASTIC_TRAINING, Strategy.EXIT))
RUNNING = NodeStatus(NodePhase.RUNNING, 1, pids=(1, 2), attached=True, committed=1)


def deputy_of(node: str) -> Address:
    return Address(f"host-{node}", 2)


def sitting(*nodes: str) -> Master:
    """A master on node `a` with a world of these nodes, all of which could succeed it."""
    master = Master(ELASTIC)
    master.job.master, master.job.host = OURS, "a"
    for node in nodes:
        limits = (ELASTIC.min_nodes, ELASTIC.max_nodes)
        master.handle(replace(registration(node), nodes=limits, deputy=deputy_of(node)))
    if master.job.phase is job.Phase.GATHERING:
        master.wait(ELASTIC.last_call_s)
    for node in nodes:
        master.report(node, NodePhase.RUNNING, 1, pids=(1, 2), attached=True, committed=1)
    return master


def will_of(*nodes: str) -> job.Will:
    will = make_will(sitting(*nodes).job, now=5.0, num_told=9, elapsed_s=5.0)
    assert will is not None, "there is a world, and there are deputies"
    return will


def candidacy(will: job.Will, *, node: str = "b", term: int = 1, dead: tuple[str, ...] = ()) -> Candidacy:
    return Candidacy(will, node, Mastership(term, node), dict.fromkeys(dead, "gone"), "gone", deputy_of(node), (HOME,))


def heir(will: job.Will, *, dead: dict[str, str], voters: tuple[str, ...]) -> tuple[Master, list[job.Action]]:
    master = Master(ELASTIC)
    inherited = job.Inherited(will, Mastership(1, "b"), "b", voters, dead, "gone", 12)
    return master, master.handle(inherited)


def back(master: Master, node: str, status: NodeStatus = RUNNING, *, nonce: str = "") -> list[job.Action]:
    limits = (ELASTIC.min_nodes, ELASTIC.max_nodes)
    return master.handle(replace(registration(node, nonce=nonce, status=status), nodes=limits, deputy=deputy_of(node)))


# --- the will -------------------------------------------------------------------------------------------------


def test_a_will_names_the_deputies_in_the_order_of_their_ranks_without_the_host():
    assert [deputy.node for deputy in will_of("a", "b", "c").deputies] == ["b", "c"]


def test_one_node_of_each_other_machine_comes_first():
    master = sitting("a", "b", "c", "d")
    machines = {"a": "m1", "b": "m1", "c": "m2", "d": "m2"}
    for node, member in master.job.members.items():
        member.registered = replace(member.registered, machine=machines[node])
    assert [deputy.node for deputy in master.job.deputies()] == ["c", "b", "d"]


def test_there_is_no_will_before_there_is_a_world_and_none_where_nobody_could_inherit():
    master = Master(ELASTIC)
    assert make_will(master.job, now=0.0, num_told=0, elapsed_s=0.0) is None
    master.form("a", "b")
    assert make_will(master.job, now=0.0, num_told=0, elapsed_s=0.0) is None


def test_those_who_would_not_take_over_are_only_told_who_would():
    brief = will_of("a", "b", "c").brief()
    assert brief.members == ()
    assert brief.world.placements == ()
    assert brief.version == will_of("a", "b", "c").version
    assert len(brief.deputies) <= MAX_DEPUTIES


def test_every_new_world_and_every_node_that_comes_back_is_given_the_will():
    master = sitting("a", "b", "c")
    assert job.Bequeath("b") in back(master, "b")
    assert job.Bequeath() in master.handle(job.AgentDied("c", "c", "dead"))


# --- the election ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "dead", "needed"), [("ab", "a", 1), ("ab", "", 2), ("abc", "", 2), ("abcd", "", 3), ("abcd", "a", 2)]
)
def test_more_than_half_of_those_who_may_live_have_to_vote(nodes: str, dead: str, needed: int):
    election = Election(candidacy(will_of(*nodes), dead=tuple(dead)), until=10.0)
    for count, node in enumerate(nodes[1:], 1):
        assert election.vote(node, knows=(0, 1), now=0.0) == ""
        assert election.is_won == (count >= needed)


def test_spares_and_strangers_have_no_vote():
    election = Election(candidacy(will_of("a", "b", "c")), until=10.0)
    for node in ("b", "x", "y", "b"):
        election.vote(node, knows=(-1, -1), now=0.0)
    assert election.voters == ("b",)
    assert not election.is_won


def test_whoever_knows_of_a_newer_world_is_not_led_by_one_who_does_not():
    election = Election(candidacy(will_of("a", "b", "c")), until=10.0)
    assert "newer" in election.vote("c", knows=(0, 2), now=0.0)
    assert "over" in election.vote("c", knows=(0, 1), now=10.0)


# --- the search -----------------------------------------------------------------------------------------------


def searching(node: str, will: job.Will | None) -> Search:
    search = Search(HOME, node=node, nonce=node, lease_s=4.0)
    if will is not None:
        search.take_will(will, now=1.0)
    return search


def addresses(search: Search) -> Address:
    choice = search.next(silent_s=0.0, now=0.0)
    return choice.address


def test_without_a_will_the_master_is_only_looked_for_at_home():
    search = searching("b", None)
    assert not search.fail(proof="refused", silent_s=100.0)
    assert addresses(search) == HOME


def test_a_master_that_may_come_back_is_waited_for():
    search = searching("c", will_of("a", "b", "c"))
    assert not search.fail(proof="", silent_s=1.9)
    assert search.next(silent_s=1.9, now=0.0) == Dial(HOME, 0.2, 0.2)
    assert search.fail(proof="", silent_s=2.0)
    assert addresses(search) == deputy_of("b")


def test_a_host_that_refuses_is_dead_at_once_and_the_deputies_are_asked_in_their_order():
    search = searching("d", will_of("a", "b", "c", "d"))
    found = []
    while search.fail(proof="refused", silent_s=0.0):
        choice = search.next(silent_s=0.0, now=3.0)
        found.append(choice)
    assert [choice.address for choice in found] == [deputy_of(node) for node in "bcd"]
    assert found[0].connect_s == DEPUTY_DIAL_S
    assert isinstance(found[2], Candidacy)
    assert found[2].dead == dict.fromkeys("abc", "refused")
    assert found[2].will.elapsed_s == 5.0 + 2.0
    assert addresses(search) == HOME, "and then all over again"


def test_the_node_of_the_master_holds_no_election():
    search = searching("a", will_of("a", "b", "c"))
    assert not search.fail(proof="refused", silent_s=100.0)


def test_another_master_at_the_same_address_is_not_followed():
    search = searching("b", will_of("a", "b"))
    assert search.may_follow(OURS)
    assert not search.may_follow(Mastership(0, "another"))


def test_a_vote_binds_until_the_election_is_lost():
    search = searching("c", will_of("a", "b", "c"))
    search.fail(proof="", silent_s=3.0)
    assert search.may_follow(Mastership(1, "b"))
    assert not search.may_follow(OURS)
    assert not search.may_follow(Mastership(1, "c"))
    assert search.may_follow(Mastership(2, "c"))
    search.be_released()
    assert search.may_follow(Mastership(1, "b"))
    search.be_released()
    assert search.may_follow(OURS)


def lose_election(search: Search) -> None:
    """Vote for the candidate of node b, which vanishes without a word, and stand for election in vain."""
    search.fail(proof="", silent_s=3.0)
    assert search.may_follow(Mastership(1, "b"))
    search.fail(proof="refused", silent_s=3.0)
    own = search.next(silent_s=3.0, now=2.0)
    assert isinstance(own, Candidacy)
    assert search.may_follow(own.master)
    search.be_released()
    search.fail(proof="", silent_s=3.0)


def test_a_master_that_was_left_for_an_election_is_not_dead_because_it_may_not_be_followed():
    search = searching("c", will_of("a", "b", "c"))
    lose_election(search)
    assert addresses(search) == HOME
    assert not search.may_follow(OURS)
    assert not search.is_usurped(by=OURS)
    assert not search.is_usurped(by=Mastership(1, "x")), "whoever is there knows of a newer one"
    assert search.is_usurped(by=Mastership(0, "a2"))


def test_who_was_dead_counts_again_once_the_master_has_accepted_this_node():
    search = searching("c", will_of("a", "b", "c"))
    search.fail(proof="", silent_s=3.0), search.fail(proof="refused", silent_s=3.0), search.fail(proof="", silent_s=3.0)
    assert search.may_follow(OURS)
    search.be_accepted()
    search.fail(proof="", silent_s=3.0), search.fail(proof="", silent_s=3.0)
    own = search.next(silent_s=3.0, now=2.0)
    assert isinstance(own, Candidacy)
    assert own.dead == {}


def test_a_refusal_at_the_successor_says_nothing_about_the_node_before_it():
    search = searching("c", will_of("a", "b", "c"))
    search.redirect(deputy_of("b"), Mastership(1, "b"))
    search.fail(proof="refused", silent_s=0.0)
    own = search.next(silent_s=0.0, now=2.0)
    assert isinstance(own, Candidacy)
    assert own.dead == {"b": "refused"}


@pytest.mark.parametrize("has_will", [True, False])
def test_a_node_that_was_sent_on_in_vain_looks_where_it_was_sent_from(has_will: bool):
    search = searching("x", will_of("a", "b") if has_will else None)
    search.redirect(deputy_of("b"), Mastership(1, "b"))
    search.fail(proof="refused", silent_s=100.0)
    assert addresses(search) == HOME
    search.fail(proof="refused", silent_s=100.0)
    assert addresses(search) == deputy_of("b")


def test_the_former_host_of_a_master_looks_for_the_successor_of_its_successor():
    search = searching("a", will_of("a", "b", "c"))
    search.redirect(deputy_of("b"), Mastership(1, "b"))
    assert search.fail(proof="refused", silent_s=0.0)
    assert addresses(search) == deputy_of("c")


def test_a_vote_at_the_address_of_the_master_binds_too():
    search = searching("c", will_of("a", "b", "c"))
    assert search.may_follow(Mastership(3, "b"))
    assert not search.may_follow(Mastership(3, "d"))
    search.be_released()
    assert search.may_follow(Mastership(3, "d"))


def test_who_is_elected_is_where_the_master_is_and_who_has_moved_says_where_to():
    search = searching("c", will_of("a", "b", "c"))
    search.fail(proof="refused", silent_s=0.0)
    search.be_accepted()
    assert addresses(search) == deputy_of("b")
    search.redirect(Address("elsewhere", 3), Mastership(5, "x"))
    assert addresses(search) == Address("elsewhere", 3)
    assert not search.may_follow(Mastership(4, "b"))


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("bcd"), st.booleans()), max_size=20))
def test_nobody_follows_an_older_master_than_the_one_it_has_voted_for(history: list[tuple[int, str, bool]]):
    search = searching("d", will_of("a", "b", "c", "d"))
    search.fail(proof="", silent_s=3.0)
    bound = OURS
    for term, name, is_lost in history:
        master = Mastership(term, name)
        follows = search.may_follow(master)
        assert follows == (master == bound or term > bound.term)
        if follows and is_lost:
            search.be_released()
            search.may_follow(bound)
        elif follows:
            bound = master


# --- what is inherited ----------------------------------------------------------------------------------------


def test_the_heir_repairs_the_world_once_every_node_has_said_how_it_is():
    master, actions = heir(will_of("a", "b", "c"), dead={"a": "gone"}, voters=("b", "c"))
    assert [tale.term for tale in tales(actions, MasterMoved)] == [1]
    assert [tale.node for tale in tales(actions, NodeLost)] == ["a"]
    assert not tales(back(master, "b"), IncidentOpened)
    actions = back(master, "c")
    opened = tales(actions, IncidentOpened)
    assert [(tale.strategy, tale.generation) for tale in opened] == [("elastic-training", 2 + GENERATION_GAP)]
    order = orders(actions)["c"]
    assert isinstance(order, Run)
    assert [placement.node for placement in order.world.placements] == ["b", "c"]
    assert order.world.repairs


def test_a_false_alarm_costs_nothing():
    master, _ = heir(will_of("a", "b", "c"), dead={}, voters=("b", "c"))
    assert not orders(back(master, "b") + back(master, "c") + back(master, "a"))
    assert master.job.generation == 1
    assert master.job.phase is job.Phase.RUNNING


def test_a_silent_host_keeps_its_ranks_until_it_must_have_stopped_its_workers():
    master, _ = heir(will_of("a", "b", "c"), dead={}, voters=("b", "c"))
    back(master, "b"), back(master, "c")
    master.now = ELASTIC.lease_s - 0.1
    back(master, "b"), back(master, "c")
    assert not tales(master.wait(ELASTIC.lease_s), IncidentOpened)
    assert tales(master.wait(master.job.next_deadline()), IncidentOpened)
    assert master.now == 2 * ELASTIC.lease_s - ELASTIC.fence_s


def test_who_has_stopped_its_workers_meanwhile_costs_the_others_nothing():
    stopped = NodeStatus(NodePhase.READY, 1, called_off=True, reason="cut off from the master for 9 s")
    later = replace(stopped, generation=3)
    for dead in ({}, {"a": "gone"}):
        master, _ = heir(will_of("a", "b", "c", "d"), dead=dead, voters=("b", "c"))
        if not dead:
            back(master, "a", later)
        back(master, "b"), back(master, "c", stopped)
        actions = back(master, "d")
        assert not tales(actions, Stopping)
        order = orders(actions)["d"]
        assert isinstance(order, Run)
        assert [placement.node for placement in order.world.placements] == ["b", "d"]
        symptom = tales(actions, IncidentOpened)[0].symptom
        assert "node c stopped its workers: cut off from the master for 9 s" in symptom


def test_nobody_gets_its_ranks_before_its_workers_are_gone():
    master, _ = heir(will_of("a", "b", "c"), dead={"a": "gone"}, voters=("b", "c"))
    stopped = NodeStatus(NodePhase.DRAINING, 1, called_off=True, reason="the group is being stopped")
    assert not orders(back(master, "b") + back(master, "c", stopped))
    actions = master.report("c", NodePhase.READY, 1, called_off=True)
    assert [placement.node for placement in orders(actions)["b"].world.placements] == ["b"]


def test_the_end_that_somebody_asked_for_is_not_forgotten():
    for dead in ({}, {"a": "gone"}):
        master, _ = heir(will_of("a", "b", "c"), dead=dead, voters=("b", "c"))
        if not dead:
            back(master, "a")
        back(master, "b")
        actions = back(master, "c", NodeStatus(NodePhase.READY, 1, end_job=130, reason="SIGINT", called_off=True))
        assert [tale.decision for tale in tales(actions, Stopping)] == ["finish"]


def test_workers_that_were_stopped_meanwhile_are_started_again():
    master, _ = heir(will_of("a", "b", "c"), dead={"a": "gone"}, voters=("b", "c"))
    idle = NodeStatus(NodePhase.READY, 1)
    back(master, "b", idle)
    actions = back(master, "c", idle)
    assert master.job.phase is job.Phase.RUNNING
    assert {type(order) for order in orders(actions).values()} == {Run}
    assert master.job.generation == 2 + GENERATION_GAP


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_step_that_was_being_saved_does_not_keep_the_heir_waiting(is_saved: bool):
    will = will_of("a", "b", "c")
    will = replace(will, world=replace(will.world, generation=2, repairs=True, dumps=True))
    master, _ = heir(will, dead={}, voters=("b", "c"))
    for node in ("a", "b", "c"):
        actions = back(master, node, replace(RUNNING, generation=2, committed=2 if is_saved else 1))
    if not is_saved:
        for node in ("a", "b", "c"):
            master.job.leases.renew(node, now=DUMP_S)
        actions = master.wait(DUMP_S)
    saved = "the last step was saved" if is_saved else "the last step was not saved within"
    assert saved in tales(actions, Stopping)[0].reason


def test_a_repair_that_was_under_way_has_a_deadline_for_the_heir_too():
    will = will_of("a", "b", "c")
    will = replace(will, world=replace(will.world, generation=2, repairs=True))
    master, _ = heir(will, dead={}, voters=("b", "c"))
    assert master.job.repair_until == ELASTIC.repair_timeout_s
    for node in ("a", "b", "c"):
        back(master, node, replace(RUNNING, generation=2, committed=2))
    assert master.job.repair_until is None, "it is done"


def test_a_restarted_heir_knows_what_it_knew():
    events: list[job.Event] = [
        job.Inherited(will_of("a", "b", "c"), Mastership(1, "b"), "b", ("b", "c"), {"a": "gone"}, "gone", 12)
    ]
    limits = (ELASTIC.min_nodes, ELASTIC.max_nodes)
    events += [replace(registration(node, status=RUNNING), nodes=limits, deputy=deputy_of(node)) for node in ("b", "c")]
    worlds = []
    for _ in range(2):
        master = Master(ELASTIC)
        for event in events:
            master.handle(event)
        worlds.append(master.job.world)
    assert worlds[0] == worlds[1]


# --- a master that may have been succeeded --------------------------------------------------------------------


@pytest.mark.parametrize(("silent", "goes_on"), [("d", True), ("cd", True), ("bcd", False)])
def test_a_master_that_hears_less_than_half_of_its_world_stops(silent: str, goes_on: bool):
    master = sitting("a", "b", "c", "d")
    master.now = ELASTIC.lease_s - 0.1
    heard = [node for node in "abcd" if node not in silent]
    master.beat(*heard)
    actions = master.wait(ELASTIC.lease_s + master.job.rules.last_call_s)
    assert bool(tales(actions, Isolated)) is not goes_on
    if goes_on:
        assert tales(actions, IncidentOpened)
        return
    assert orders(actions)["a"] == Stop(1, "the group is being stopped", at_once=True)
    actions = master.report("a", NodePhase.READY, 1)
    assert not orders(actions)
    assert "1 of 4 nodes of the last world are here" in master.job.waiting_reason
    master.now += 1.0
    for node in ("b", "c"):
        back(master, node, READY, nonce=f"{node}2")
    assert master.job.phase is job.Phase.RUNNING, "half of them are here"


def test_a_master_that_hears_less_than_half_while_all_are_stopped_does_not_start_again():
    master = sitting("a", "b", "c")
    master.report("a", NodePhase.DRAINING, 1, reason="it failed")
    assert master.job.phase is job.Phase.STOPPING
    master.now = ELASTIC.lease_s - 0.1
    master.report("a", NodePhase.READY, 1)
    master.wait(ELASTIC.lease_s)
    master.wait(ELASTIC.lease_s + ELASTIC.last_call_s)
    assert master.job.phase is job.Phase.GATHERING
    assert "1 of 3 nodes of the last world are here" in master.job.waiting_reason


def test_those_who_fall_silent_one_after_the_other_are_counted_together():
    """The world without the first of them counts only once the others know of it."""
    master = sitting("a", "b", "c")
    master.beat("a", "b", "c")
    master.now = ELASTIC.lease_s - 0.1
    master.beat("a", "c")
    first = master.wait(ELASTIC.lease_s + ELASTIC.last_call_s)
    assert tales(first, IncidentOpened)
    assert [placement.node for placement in master.job.world.placements] == ["a", "c"]
    master.beat("a")
    assert tales(master.wait(2 * ELASTIC.lease_s), Isolated)


@pytest.mark.parametrize("is_back", [True, False])
def test_nobody_is_given_up_while_so_many_are_quiet_that_they_may_have_elected_another_master(is_back: bool):
    master = sitting("a", "b", "c")
    formed_at = master.now
    master.now += 1.0
    master.beat("c")
    master.now = formed_at + ELASTIC.lease_s
    master.beat("a")
    assert master.wait(master.now) == [], "b is silent, and c may be too"
    assert master.job.next_deadline() == master.now + ELASTIC.lease_s / 10
    if is_back:
        master.beat("c")
    actions = master.wait(formed_at + 1.0 + ELASTIC.lease_s)
    assert bool(tales(actions, IncidentOpened)) is is_back
    assert bool(tales(actions, Isolated)) is not is_back


def test_a_world_that_only_the_master_knows_of_does_not_hide_how_many_are_silent():
    master = sitting("a", "b", "c", "d", "e")
    master.now = 1.0
    master.handle(job.AgentDied("e", "e", "dead"))
    master.beat("a")
    master.report("a", NodePhase.RUNNING, 2, pids=(1, 2), attached=True, committed=1)
    master.now = ELASTIC.lease_s - 0.1
    master.beat("a")
    assert tales(master.wait(ELASTIC.lease_s + 1.0), Isolated)


def test_where_nobody_could_be_elected_a_master_goes_on_with_whoever_is_left():
    master = Master(ELASTIC)
    master.form("a", "b", "c")
    for node in "abc":
        master.report(node, NodePhase.RUNNING, 1, pids=(1, 2), attached=True, committed=1)
    master.now = ELASTIC.lease_s + 1.9
    master.beat("a")
    actions = master.wait(ELASTIC.lease_s + 2.0)
    assert not tales(actions, Isolated)
    assert master.job.phase is job.Phase.RUNNING
