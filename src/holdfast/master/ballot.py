"""An election, as the candidate holds it: nodes register, and wait until it is decided."""

from __future__ import annotations

import asyncio
import contextlib

from holdfast.core.election import ELECTION_S, Candidacy, Election
from holdfast.core.job import Inherited
from holdfast.errors import NotElected
from holdfast.wire.messages import Register


class Ballot:
    def __init__(self, candidacy: Candidacy) -> None:
        loop = asyncio.get_running_loop()
        self._candidacy = candidacy
        self._election = Election(candidacy, until=loop.time() + ELECTION_S)
        self._num_told = candidacy.will.num_told
        self._decided = asyncio.Event()
        self._trouble = ""

    async def cast(self, message: Register) -> str:
        """Take a vote and wait for the end of the election; why it is lost, or empty."""
        if self._decided.is_set():
            return self._trouble
        now = asyncio.get_running_loop().time()
        self._trouble = self._election.vote(message.node, knows=message.knows, now=now)
        self._num_told = max(self._num_told, message.seen)
        if self._trouble or self._election.is_won:
            self._decided.set()
        await self._decided.wait()
        return self._trouble

    async def decide(self) -> Inherited:
        """What follows from the election, once it is won; raises `NotElected` if it is lost."""
        election = self._election
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(election.until):
                await self._decided.wait()
        if not self._trouble and not election.is_won:
            self._trouble = f"{len(election.voters)} of {election.needed} votes"
        self._decided.set()
        if self._trouble:
            raise NotElected(f"not elected: {self._trouble}")
        candidacy = self._candidacy
        return Inherited(
            candidacy.will,
            candidacy.master,
            candidacy.node,
            election.voters,
            candidacy.dead,
            candidacy.evidence,
            self._num_told,
        )
