"""What a rank does by itself when worlds change: which backend all use, and how long it waits for the next world."""

from __future__ import annotations

import math

import pytest
import torch.distributed as dist

from holdfast.agent.crew import VERDICT_MARGIN_S, verdict_s
from holdfast.cluster.worker import invitation
from holdfast.core.ids import Address, Placement, World
from holdfast.errors import JobError
from holdfast.observe.beacon import Beacon
from holdfast.sdk.groups import Group, choose_backend, offer_gpu
from holdfast.sdk.membership import Membership
from holdfast.sdk.state import Protected
from holdfast.sdk.subgroups import Subgroups
from holdfast.wire.worker import Faulted, Join, Message, Resumed, Stranded


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["one", "two", "three"], "cpu:gloo,cuda:nccl"),
        (["one", "two", "one"], "gloo"),
        (["one", "", "two"], "gloo"),
        (["", ""], "gloo"),
    ],
    ids=["one each", "one is shared", "one has none", "none"],
)
def test_nccl_is_for_ranks_that_have_a_gpu_each(gpus: list[str], backend: str) -> None:
    store = dist.HashStore()
    for gpu in gpus:
        offer_gpu(store, gpu)
    assert {choose_backend(store) for _ in gpus} == {backend}


class SilentLine:
    """Knows one world, and never hears of another."""

    arrived_at = 0.0

    def __init__(self, *, verdict_s: float | None) -> None:
        self.world = Join(1, 0, 0, 2, "host", 1, False, verdict_s)
        self.sent: list[Message] = []
        self.waited: list[float | None] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def newest(self) -> Join:
        return self.world

    def wait_above(self, generation: int, *, timeout_s: float | None) -> Join:
        self.waited.append(timeout_s)
        raise JobError("no new world")


def member(line: SilentLine) -> Membership:
    subgroups = Subgroups(may_be_asked=lambda: True)
    return Membership(line, Protected(), Beacon(None), find_gpu=lambda _: "", subgroups=subgroups, launched_at=0.0)


@pytest.mark.parametrize("limit_s", [0.5, None])
def test_a_fault_waits_for_the_next_world_as_long_as_the_rules_of_this_one_say(limit_s: float | None) -> None:
    line = SilentLine(verdict_s=limit_s)
    place = member(line)
    with pytest.raises(JobError):
        place.report_fault("communication", "a peer is gone")
    assert [type(message) for message in line.sent] == [Faulted]
    assert line.waited == [limit_s]


class NotedGroup:
    """Notes that it was severed."""

    is_built = False

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.is_severed = False

    def sever(self) -> None:
        self.is_severed = True


def test_a_new_world_ends_no_wait_of_those_who_are_in_it_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel's thread tells of a world while the main thread, which has heard of it too, enters it."""
    line = SilentLine(verdict_s=None)
    line.world = Join(2, 0, 0, 2, "host", 1, False, None)
    place, entered = member(line), NotedGroup(2)

    class LeftGroup(NotedGroup):
        """Left by the main thread at the moment in which somebody looks at it."""

        def __getattribute__(self, name: str) -> object:
            monkeypatch.setattr(place, "_group", entered)
            return super().__getattribute__(name)

    monkeypatch.setattr(place, "_group", LeftGroup(1))
    place.sever()
    assert not entered.is_severed


def test_a_new_world_ends_every_wait_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    line = SilentLine(verdict_s=None)
    place, old = member(line), NotedGroup(1)
    monkeypatch.setattr(place, "_group", old)
    place.sever()
    assert not old.is_severed
    line.world = Join(2, 0, 0, 2, "host", 1, False, None)
    place.sever()
    assert old.is_severed


def test_without_a_launcher_new_ranks_among_themselves_begin_as_the_first_ones_did() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    line = SilentLine(verdict_s=None)
    place = member(line)
    place.begin_at(7)
    try:
        line.world = Join(2, 0, 0, 1, "127.0.0.1", store.port, False, None, begins_anew=True)
        place.enter(in_section=False)
        assert (place.position.committed, place.position.usable) == (7, True)
        assert line.sent == [Resumed(2, 7, "nothing is saved: starting at step 7")]
        place.note_damage([])
        line.world = Join(3, 0, 0, 1, "127.0.0.1", store.port, False, None, begins_anew=True)
        with pytest.raises(JobError):
            place.enter(in_section=False)
        assert Stranded(3) in line.sent, "whose state was spoilt cannot begin again where no other has one"
    finally:
        place.leave()


class NotedSubgroups(Subgroups):
    """Notes how often somebody looked for what waits on a device."""

    num_looks = 0

    def on_devices(self) -> list[object]:
        self.num_looks += 1
        return []


def test_who_is_late_to_end_a_world_ends_no_subgroup_of_the_next_one() -> None:
    """All worlds of a script have the same subgroups, made anew for each."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    subgroups = NotedSubgroups(may_be_asked=lambda: True)
    address = Address("127.0.0.1", store.port)
    left, right = (
        Group(generation=n, rank=0, size=1, store=address, timeout_s=10.0, subgroups=subgroups) for n in (1, 2)
    )
    left.build()
    left.drop()
    right.build()
    left.sever()
    assert subgroups.num_looks == 0
    right.sever()
    assert subgroups.num_looks == 1
    right.drop()


def test_a_worker_outwaits_its_master() -> None:
    assert verdict_s(600.0) == 600.0 + VERDICT_MARGIN_S
    assert verdict_s(math.inf) is None
    world = World(1, 0, tuple(Placement(f"{n}", n, n, 1) for n in range(2)), Address("host", 1))
    assert invitation(world, world.placements[0], verdict_s=600.0).verdict_s == 600.0
