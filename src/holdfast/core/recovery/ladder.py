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
    retried: bool = False
    """Whether that was answered by another try of the step, so that a new process has not been tried yet."""
    nodes_lost: int = 0
    enough_nodes: int = 0
    """So many nodes are left, enough to go on at once if they may, and none is there to take the place of the lost."""
    waited_s: float = 0.0
    """So long a node was awaited, and none came."""
    saves: bool = True
    """Whether the script has said where its last step could be saved."""
    overdue_s: float = 0.0
    """So long a repair has gone on, and no step was committed."""


@dataclass(frozen=True, slots=True)
class Plan:
    strategy: Strategy
    reason: str
    restartable: bool = True
    """Whether `exit` may be followed by a restart: not if the script itself is at fault."""


def choose(situation: Situation, *, allowed: Sequence[Strategy]) -> Plan:
    """The first strategy that applies, with the reasons why those before it do not."""
    skipped: dict[str, list[str]] = {}
    for strategy in allowed:
        objection = _objection(strategy, situation)
        if objection:
            skipped.setdefault(objection, []).append(strategy.value)
            continue
        gives_up = strategy in (Strategy.DUMP, Strategy.EXIT)
        reasons = [f"no {', '.join(names)}: {objection}" for objection, names in skipped.items()]
        if situation.repeated and gives_up:
            reasons.append("the script is at fault")
        reason = "; ".join([_grounds(strategy, situation), *reasons])
        return Plan(strategy, reason, restartable=not (situation.repeated and gives_up))
    raise AssertionError("exit always applies")


def _objection(strategy: Strategy, situation: Situation) -> str:
    if strategy is Strategy.EXIT:
        return ""
    if not situation.all_attached:
        return "not every worker uses the SDK"
    if situation.num_alive == 0:
        return "no live worker holds the state"
    if strategy is Strategy.DUMP:
        return "" if situation.saves else "no step is committed that run.checkpoint() would save"
    if not situation.repairs_left:
        return "too many repairs within the window"
    if situation.overdue_s:
        return f"no step was committed within {situation.overdue_s:g} s"
    if situation.repeated and (strategy is Strategy.RETRY or not situation.retried):
        return "the same exception was raised at the same step again"
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
