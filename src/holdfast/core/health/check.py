"""One check of some nodes: at most two rounds, then a verdict on each.

A check has a number of its own, and what carries another one is refused: nothing leaks from one check to the next.
Nodes that are known to be fit may help: they measure the same at the same time, for comparison, and are partners.
Nothing is found out about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.core.health.pairing import Group, pair_again, pair_up, pairs_in
from holdfast.core.health.results import CheckResult
from holdfast.core.health.verdicts import Fitness, Verdict, judge
from holdfast.core.ids import Address, Check, PairTest

ROUND_S = 180.0
"""For all results of a round, from its order: importing torch is in it. Whoever has not answered by then has failed;
an agent that lives answers sooner, since it ends a probe that does not."""
LAST_ROUND = 2


@dataclass(frozen=True, slots=True)
class Site:
    """Where a node is tested."""

    store: Address
    machine: str = ""


class NodeCheck:
    """A check while it runs."""

    def __init__(
        self,
        check_id: int,
        *,
        subjects: Mapping[str, Site],
        helpers: Mapping[str, Site],
        now: float,
    ) -> None:
        self.check_id = check_id
        self.round = 1
        self.subjects = list(subjects)
        self.until = now + ROUND_S
        self._helpers = [node for node in helpers if node not in subjects]
        self._fit = frozenset(self._helpers)
        self._sites = {**helpers, **subjects}
        self._rounds: list[dict[str, CheckResult]] = [{}]
        self._lost: set[str] = set()
        self._groups = pair_up(self.subjects) if len(self.subjects) > 1 else [(*self.subjects, *self._helpers[:2])]

    @property
    def results(self) -> dict[str, CheckResult]:
        """Of the current round."""
        return self._rounds[-1]

    def peers_of(self, node: str) -> list[str]:
        """Who is tested with a node in this round."""
        return [each for group in self._groups if node in group for each in group if each != node]

    def order_for(self, node: str) -> Check | None:
        """What a node has to do in this round and has not done yet: first its own part, then tests with others."""
        group = next((group for group in self._groups if node in group), None)
        if group is None or self._is_done(node):
            return None
        address = self._sites[node].store.host
        if not self._has_done_own(node):
            return Check(self.check_id, self.round, address)
        if not all(self._is_out(mate) or self._has_done_own(mate) for mate in group):
            return None
        pairs = [pair for pair in pairs_in(group) if not any(self._is_out(each) for each in pair)]
        tests = tuple(self._test(pair, node, slot) for slot, pair in enumerate(pairs) if node in pair)
        return Check(self.check_id, self.round, address, tests) if tests else None

    def note(self, node: str, result: CheckResult) -> None:
        """Take what a node has found out, unless it is of another check, another round, or nobody asked."""
        if result.key == (self.check_id, self.round) and any(node in group for group in self._groups):
            self.results[node] = result

    def lose(self, node: str) -> None:
        """A node is gone: nothing is to be found out about it, and nobody waits for it."""
        self._lost.add(node)
        self.subjects = [name for name in self.subjects if name != node]
        self._helpers = [name for name in self._helpers if name != node]

    def is_round_over(self, *, now: float) -> bool:
        return now >= self.until or not self.awaited()

    def awaited(self) -> list[str]:
        """Nodes without which this round is not over."""
        nodes = [node for group in self._groups for node in group if node not in self._lost]
        return [node for node in nodes if not self._is_done(node)]

    def end_round(self, *, now: float) -> dict[str, Verdict]:
        """What is known after this round; if `is_decided` says otherwise, the second one has begun."""
        for node in self.awaited():
            partial = self.results.get(
                node, CheckResult(self.check_id, self.round, error=f"no result in {ROUND_S:g} s")
            )
            self.results[node] = replace(partial, is_whole=True)
        return judge(self._rounds, fit=self._fit, subjects=self.subjects)

    def is_decided(self, verdicts: Mapping[str, Verdict]) -> bool:
        """Whether a second round would tell more; nobody is thought ill of after only one."""
        return self.round == LAST_ROUND or not self._suspects(verdicts)

    def begin_second_round(self, verdicts: Mapping[str, Verdict], *, now: float) -> None:
        suspects = self._suspects(verdicts)
        self._groups = self._regroup(suspects)
        self.round, self.until = LAST_ROUND, now + ROUND_S
        self._rounds.append({})

    def _regroup(self, suspects: Sequence[str]) -> list[Group]:
        if len(self.subjects) == 1:
            others = self._helpers[2:4] if len(self._helpers) > 3 else self._helpers[:2]
            return [(*self.subjects, *others)]
        met = {node: self.peers_of(node) for node in self.subjects}
        helpers = self._helpers[: len(suspects)]
        groups = pair_again([*self.subjects, *helpers], suspects=suspects, met=met)
        return [self._helpers_last(group) for group in groups if any(node in self.subjects for node in group)]

    def resume(self, *, now: float) -> None:
        """The master was away: whoever has a result to tell gets the whole time again."""
        self.until = now + ROUND_S

    def _suspects(self, verdicts: Mapping[str, Verdict]) -> list[str]:
        failed_once = {node for node, result in self.results.items() if result.error}
        return [node for node in self.subjects if node in failed_once or verdicts[node].fitness is not Fitness.FIT]

    def _is_done(self, node: str) -> bool:
        result = self.results.get(node)
        if result is not None and result.is_whole:
            return True
        # It has done its own part, and nobody is left to be tested with.
        return self._has_done_own(node) and all(self._is_out(peer) for peer in self.peers_of(node))

    def _has_done_own(self, node: str) -> bool:
        result = self.results.get(node)
        return result is not None and not result.error

    def _is_out(self, node: str) -> bool:
        """Whether nobody can be tested with it."""
        return node in self._lost or (node in self.results and bool(self.results[node].error))

    def _test(self, pair: Sequence[str], node: str, slot: int) -> PairTest:
        leader = pair[0]
        peer = pair[1] if node == leader else leader
        ours, theirs = self._sites[node].machine, self._sites[peer].machine
        return PairTest(peer, self._sites[leader].store, node == leader, slot, bool(ours) and ours == theirs)

    def _helpers_last(self, group: Group) -> Group:
        """The first of a pair serves the store, and who trains has its own to serve."""
        return tuple(sorted(group, key=lambda node: node not in self.subjects))
