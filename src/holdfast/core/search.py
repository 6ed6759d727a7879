"""Where an agent looks for its master.

At its address, at first and for as long as it may come back there. Once it is lost, at the deputies that its will
names, one after the other; an agent that is a deputy stands for election when it is its turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from holdfast.core.election import ELECTION_S, Candidacy
from holdfast.core.ids import Address, Deputy, Mastership
from holdfast.core.job.events import Will

DIAL_S = 5.0
"""For one try: a host that drops packets must not hold up the next one for minutes."""
MIN_DIAL_S = 0.2
DEPUTY_DIAL_S = 0.5
"""For a deputy's host to answer; then the next one is asked."""
DEPUTY_START_S = 1.5
"""For a deputy to find out that the master is lost, and to stand for election."""

NUM_UNDERSTUDIES = 2
"""So many deputies have a process ready that could become the master at once."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Ask for the master there."""

    address: Address
    connect_s: float = DIAL_S
    """For the connection."""
    greet_s: float = DIAL_S
    """For the first word on it, the connection included."""
    accept_s: float = math.inf
    """For the answer to a registration."""


class Search:
    def __init__(self, home: Address, *, node: str = "", nonce: str = "", lease_s: float = math.inf) -> None:
        self.address = home
        """Of the master, as far as is known."""
        self._node = node
        self._nonce = nonce
        self._suspicion_s = lease_s / 2
        """Silence after which the master is taken for lost: the next one must be found before this node gives up."""
        self._been_at = [home]
        self._will: Will | None = None
        self._will_from = home
        """Where the master was that wrote it."""
        self._began_at = 0.0
        self._promises: list[Mastership] = []
        """The master that was followed last, then those that were voted for since; the last one binds."""
        self._stood_for = 0
        self._turn = 0
        self._has_asked_all = False
        """Nobody could take over: there is no hurry any more."""
        self._dead: dict[str, str] = {}
        self._evidence = ""

    @property
    def version(self) -> tuple[int, int]:
        """Of the newest will."""
        return (-1, -1) if self._will is None else self._will.version

    @property
    def is_succeeded(self) -> bool:
        """Whether a lost master would be succeeded."""
        return self._will is not None

    @property
    def is_next(self) -> bool:
        """Whether this node is likely to stand for election, if one is held."""
        return self._node in [deputy.node for deputy in self._deputies()[:NUM_UNDERSTUDIES]]

    @property
    def answer_s(self) -> float:
        """Silence on a connection after which it is given up."""
        return self._suspicion_s if self._will is not None else math.inf

    def next(self, *, silent_s: float, now: float) -> Dial | Candidacy:
        if self._turn == 0:
            can_wait = self._has_asked_all or self._dialled_node() == self._node
            hurry_s = DIAL_S if can_wait else min(DIAL_S, max(MIN_DIAL_S, self.answer_s - silent_s))
            return Dial(self.address, hurry_s, hurry_s)
        deputy = self._deputies()[self._turn - 1]
        if deputy.node == self._node:
            return self._stand(deputy.address, now=now)
        return Dial(deputy.address, DEPUTY_DIAL_S, DEPUTY_START_S, 2 * ELECTION_S)

    def take_will(self, will: Will, *, now: float) -> None:
        if will.version >= self.version:
            self._will, self._promises, self._began_at = will, [will.master], now - will.elapsed_s
            self._will_from = self.address

    def may_follow(self, master: Mastership) -> bool:
        """Whether to register with a master that has introduced itself. Doing so is a vote, and it binds."""
        bound = self._promises[-1] if self._promises else None
        if bound is not None and master != bound and master.term <= bound.term:
            return False
        if bound is not None and master != bound:
            self._promises.append(master)
        return True

    def is_usurped(self, by: Mastership) -> bool:
        """Whether one who is not followed proves that the master is gone which was at its address before. Not if it is
        that one, and this node has left it for an election of which it never heard the end; nor if it is newer."""
        left = self._promises[0]
        return self._turn == 0 and by != left and by.term <= left.term

    def be_accepted(self) -> None:
        self._settle_at(self._deputies()[self._turn - 1].address if self._turn > 0 else self.address)

    def be_released(self) -> None:
        """The election for which this node has voted is lost."""
        if len(self._promises) > 1:
            self._promises.pop()

    def redirect(self, address: Address, master: Mastership) -> None:
        """The master has moved, and whoever is at its old address says where to."""
        self._promises.append(master)
        self._settle_at(address)

    def fail(self, *, proof: str, silent_s: float) -> bool:
        """The last try came to nothing, and perhaps proves that no agent is there; whether to go on at once."""
        node = self._dialled_node()
        if self._will is None:
            self._look_elsewhere()
            return False
        if self._turn == 0 and node == self._node:
            return False
        if proof and node:
            self._dead[node] = proof
        if self._turn == 0 and not proof and silent_s < self._suspicion_s:
            return False
        if self._turn == 0:
            self._evidence = proof or f"it was silent for {silent_s:.1f} s"
        self._turn = (self._turn + 1) % (len(self._deputies()) + 1)
        if self._turn == 0:
            self._has_asked_all = True
            self._look_elsewhere()
        return self._turn > 0

    def _stand(self, address: Address, *, now: float) -> Candidacy:
        assert self._will is not None, "a deputy has a will"
        self._stood_for = 1 + max(self._promises[-1].term, self._stood_for)
        master = Mastership(self._stood_for, self._nonce)
        will = replace(self._will, elapsed_s=now - self._began_at)
        return Candidacy(will, self._node, master, dict(self._dead), self._evidence, address, tuple(self._been_at))

    def _settle_at(self, address: Address) -> None:
        self.address, self._turn, self._dead, self._has_asked_all = address, 0, {}, False
        self._promises = self._promises[-1:]
        if address not in self._been_at:
            self._been_at.append(address)

    def _look_elsewhere(self) -> None:
        """Whoever is where a master was before may know where it is now."""
        place = self._been_at.index(self.address)
        self.address = self._been_at[(place + 1) % len(self._been_at)]

    def _dialled_node(self) -> str:
        """The node that was asked last; empty if it is not known."""
        if self._will is None:
            return ""
        if self._turn > 0:
            return self._deputies()[self._turn - 1].node
        if self.address == self._will_from:
            return self._will.host
        return next((deputy.node for deputy in self._will.deputies if deputy.address == self.address), "")

    def _deputies(self) -> tuple[Deputy, ...]:
        return () if self._will is None else tuple(d for d in self._will.deputies if d.address != self.address)
