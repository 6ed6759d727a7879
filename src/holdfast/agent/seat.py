"""The master's seat on this node: taken from the start, won in an election, or empty."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.addresses import bind_deputy, bind_master
from holdfast.agent.channel import Channel
from holdfast.agent.hosting import HostedMaster, prepare_master
from holdfast.core.election import Candidacy
from holdfast.core.ids import Address
from holdfast.errors import HoldfastError, JobError
from holdfast.spec.job import NodeSpec
from holdfast.wire.messages import Moved


class Seat:
    def __init__(
        self,
        spec: NodeSpec,
        *,
        node: str,
        nonce: str,
        journals: Path,
        channel: Channel | None,
        on_death: Callable[[str], None],
        on_ruin: Callable[[JobError], None],
    ) -> None:
        self._spec, self._node, self._nonce, self._journals, self._channel = spec, node, nonce, journals, channel
        self._on_death, self._on_ruin = on_death, on_ruin
        self._first = bind_master(spec)
        if channel is not None and self.is_first:
            channel.serving()
        self._deputy = bind_deputy(spec) if channel is None or _can_serve(channel) else None
        self.address = Address(spec.host, spec.port if self._first is None else self._first.getsockname()[1])
        """Of the job's first master, here or elsewhere."""
        self._hosted: HostedMaster | None = None
        self._understudy: subprocess.Popen[bytes] | None = None
        self._signposts: list[HostedMaster] = []

    @property
    def deputy_port(self) -> int:
        return 0 if self._deputy is None else self._deputy.getsockname()[1]

    @property
    def is_first(self) -> bool:
        """Whether the job's first master is on this node."""
        return self._first is not None

    def pids(self) -> set[int]:
        """Our own processes, which a sweep must spare."""
        masters = [*self._signposts, *([] if self._hosted is None else [self._hosted])]
        understudy = set() if self._understudy is None else {self._understudy.pid}
        return understudy | {master.pid for master in masters} - {0}

    def take(self) -> None:
        """Start the job's first master, if it belongs here."""
        if self._first is not None:
            self._host(self._first, term=0, candidacy=None)

    def prepare(self) -> None:
        """Have a process ready, so that an election does not wait for it to start."""
        if self._deputy is not None and self._understudy is None:
            self._understudy = prepare_master(self._deputy)

    def stand(self, candidacy: Candidacy) -> None:
        """Start a master that goes on if enough nodes vote for it."""
        assert self._deputy is not None, "a deputy has a port for it"
        self.withdraw()
        self._host(self._deputy, term=candidacy.master.term, candidacy=candidacy)

    def leave(self, successor: Moved) -> None:
        """The master has moved elsewhere; the one that is here tells others so."""
        if self._hosted is not None:
            self._hosted.send_on(successor)
            self._signposts.append(self._hosted)
        self._hosted = None

    def withdraw(self) -> None:
        """Hold no election, or no longer."""
        if self._hosted is not None:
            self._hosted.withdraw()
        self._hosted = None

    def revive(self) -> None:
        if self._hosted is not None:
            self._hosted.revive()

    async def wait_until_gone(self, *, within_s: float) -> None:
        """Let the master tell others that the job has ended; then end it."""
        if self._hosted is not None:
            await self._hosted.wait_until_gone(within_s=within_s)
        for signpost in self._signposts:
            signpost.withdraw()
        if self._understudy is not None:
            self._understudy.kill()
            self._understudy.wait()
        for leftover in self._journals.glob("journal*.db*"):
            leftover.unlink(missing_ok=True)

    def _host(self, listener: socket.socket, *, term: int, candidacy: Candidacy | None) -> None:
        self._hosted = HostedMaster(
            listener,
            rules=self._spec.rules,
            journal=self._journals / (f"journal-{term}.db" if term else "journal.db"),
            sole_nonce=self._nonce if self._spec.single else None,
            token=self._spec.token,
            tls=None if self._channel is None else self._channel.serving(),
            client_tls=None if self._channel is None else self._channel.asking(),
            node=self._node,
            nonce=self._nonce,
            candidacy=candidacy,
            on_death=self._on_death,
            on_ruin=self._on_ruin,
        )
        self._hosted.start(self._take_understudy() if listener is self._deputy else None)

    def _take_understudy(self) -> subprocess.Popen[bytes] | None:
        understudy, self._understudy = self._understudy, None
        return understudy if understudy is not None and understudy.poll() is None else None


def _can_serve(channel: Channel) -> bool:
    """Whether this node has what a master needs; one that never hosts it does well without."""
    try:
        channel.serving()
    except HoldfastError:
        return False
    return True
