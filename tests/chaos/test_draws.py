"""How a soak draws its faults."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest

from holdfast.chaos.draws import KINDS, Draw, draw
from holdfast.chaos.experiment import Strike
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.injection import choose
from holdfast.chaos.soak import SoakPlan


def drawn(seed: int, *, num_nodes: int = 3, with_networks: bool = True, number: int = 200) -> list[Draw]:
    return list(islice(draw(seed, num_nodes=num_nodes, with_networks=with_networks), number))


def node(rank: int, *, state: str = "running", phase: str | None = "running", name: str = "") -> dict[str, Any]:
    return {"rank": rank, "state": state, "phase": phase, "name": name or f"node-{rank}"}


def test_a_seed_draws_the_same_and_another_one_others() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_every_kind_and_every_node_has_its_turn() -> None:
    found = drawn(1)
    assert {str(each.strike) for each in found} == set(map(str, KINDS))
    assert Counter(each.place for each in found).keys() == {0, 1, 2}
    for kind in KINDS:
        choose(FAULTS[kind.fault], kind.parameters)


def test_without_networks_of_their_own_only_what_needs_them_is_another_fault() -> None:
    pairs = list(zip(drawn(3), drawn(3, with_networks=False), strict=True))
    others = {(a.strike.fault, b.strike.fault) for a, b in pairs if a != b}
    assert others == {("network-loss", "stop")}
    assert all(a.place == b.place and a.strike.target == b.strike.target for a, b in pairs)
    assert not [b for _, b in pairs if FAULTS[b.strike.fault].needs_root]


@pytest.mark.parametrize(
    ("kind", "nodes", "whom"),
    [
        ("master", [], "master"),
        ("rank", [node(0), node(1)], "rank:1"),
        ("node", [node(0), node(1, state="gone", phase=None), node(1, name="node-2")], "node:node-2"),
        ("agent", [node(0), node(1, phase="preparing")], "agent:node-1"),
        ("rank", [node(0), node(1, phase="preparing")], None),
        ("node", [node(0)], None),
        ("node", [node(0, phase="preparing"), node(1)], None),
        ("rank", [node(0, state="gone", phase=None), node(1)], None),
    ],
)
def test_it_strikes_whoever_has_the_place_and_spares_the_last_with_the_state(kind: str, nodes: Any, whom: Any) -> None:
    strike = Draw(Strike("kill", kind), 1).aimed(nodes)
    assert (None if strike is None else strike.target) == whom


def test_the_report_tells_whether_networks_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    says = SoakPlan(60, 20, 1, 3, 60).experiment().says
    assert says.endswith("from seed 1; instead of being cut off, a node is stopped: only root can make networks.")
