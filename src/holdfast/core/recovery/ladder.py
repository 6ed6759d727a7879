"""The ladder: which strategy repairs a fault.

Users name strategies in any order; they are used finest first. `exit` is always there. A strategy that does not
apply hands over to the next one, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.spec.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Situation:
    """What the master knows of a fault when it has to choose."""

    num_lost: int
    """Processes that are gone."""
    num_alive: int
    """Processes that live and hold the state."""
    all_attached: bool
    """Whether every live process uses the SDK, and so can be told to join another world."""
    repeated: bool
    """Whether the same exception was raised at the same step before."""
    repairs_left: bool
    nodes_lost: int = 0
    enough_nodes: int = 0
    """So many nodes are left, enough to start again at once, and none is there to take the place of the lost ones."""
    waited_s: float = 0.0
    """So long a node was awaited, and none came."""


@dataclass(frozen=True, slots=True)
class Plan:
    strategy: Strategy
    reason: str
    restartable: bool = True
    """Whether `exit` may be followed by a restart: not if the script itself is at fault."""


def choose(situation: Situation, *, allowed: Sequence[Strategy]) -> Plan:
    """The first strategy that applies, with the reasons why those before it do not."""
    skipped: list[str] = []
    if situation.repeated:
        skipped.append("the same exception was raised at the same step again: the script is at fault")
        allowed = [strategy for strategy in allowed if strategy in (Strategy.DUMP, Strategy.EXIT)]
    for strategy in allowed:
        objection = _objection(strategy, situation)
        if not objection:
            return Plan(strategy, "; ".join([_grounds(strategy, situation), *skipped]), not situation.repeated)
        skipped.append(f"no {strategy.value}: {objection}")
    raise AssertionError("exit always applies")


def _objection(strategy: Strategy, situation: Situation) -> str:
    if strategy is Strategy.EXIT:
        return ""
    if not situation.all_attached:
        return "not every worker uses the SDK"
    if situation.num_alive == 0:
        return "no live worker holds the state"
    if strategy is Strategy.DUMP:
        return ""
    if not situation.repairs_left:
        return "too many repairs within the window"
    if strategy is Strategy.RETRY and situation.num_lost:
        return f"{_count(situation.num_lost)} lost"
    if strategy is Strategy.RECOVER_IN_PLACE and situation.nodes_lost:
        return f"{situation.nodes_lost} node{'s' * (situation.nodes_lost != 1)} lost"
    if strategy in (Strategy.RECOVER, Strategy.ELASTIC_TRAINING) and not situation.nodes_lost:
        return "no node is lost"
    if strategy is Strategy.RECOVER and situation.enough_nodes:
        return f"no spare node, and {situation.enough_nodes} are enough to go on"
    if strategy is Strategy.RECOVER and situation.waited_s:
        return f"no node came within {situation.waited_s:g} s"
    if strategy is Strategy.ELASTIC_TRAINING and not situation.enough_nodes:
        return "too few nodes are left"
    return ""


def _grounds(strategy: Strategy, situation: Situation) -> str:
    match strategy:
        case Strategy.RETRY:
            return "no process is lost"
        case Strategy.RECOVER_IN_PLACE | Strategy.RECOVER:
            return f"{_count(situation.num_alive)} alive to take the state from"
        case Strategy.ELASTIC_TRAINING:
            return f"{_count(situation.num_alive)} alive to go on with the same global batch"
        case Strategy.DUMP:
            return f"{_count(situation.num_alive)} alive to save the last step from"
    return "nothing finer applies"


def _count(processes: int) -> str:
    return f"{processes} process{'es' * (processes != 1)}"
