"""A parameter server of a self-forming cluster: it has a place and a rank, and what it serves is up to the script.

Servers are no part of the training world: a step does not wait for them, and a repair does not touch them.
"""

from __future__ import annotations

import asyncio
import random
import threading
import traceback
from typing import NoReturn

from holdfast.agent.channel import Channel
from holdfast.agent.link import Note, Waited
from holdfast.cluster.dialling import make_link
from holdfast.cluster.reminders import with_reminders
from holdfast.cluster.voice import Voice
from holdfast.core.ids import Finish, NodePhase, NodeStatus, Outcome, Run
from holdfast.core.workers import OrderReceived, Report
from holdfast.errors import HoldfastError, JobError
from holdfast.spec.cluster import ClusterSpec
from holdfast.spec.job import SERVER_PREFIX
from holdfast.wire.messages import Happened


class Server:
    """What `holdfast.init()` returns in the role of a server."""

    role = "server"

    def __init__(self, spec: ClusterSpec) -> None:
        self.num_servers = spec.num_servers
        self.rank = -1
        self._spec = spec
        self._name = f"{SERVER_PREFIX}{spec.node_id}"
        self._voice = Voice(self._name)
        self._changed = threading.Condition()
        self._outcome: Outcome | None = None
        self._trouble = ""
        self._seq = 0
        self._status = NodeStatus(NodePhase.READY, 0)
        self._channel = None if spec.tls is None else Channel(spec.tls)
        self._link = make_link(
            spec,
            self._note,
            voice=self._voice,
            channel=self._channel,
            is_placed=lambda: self.rank >= 0,
            is_server=True,
        )
        threading.Thread(target=self._live, name="holdfast-node", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._trouble or self.rank >= 0)
        if self._trouble:
            raise JobError(self._trouble)
        self._voice.say(f"server {self.rank} of {self.num_servers}")

    def serve(self) -> None:
        """Wait until the job has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"run.{name}: this process is a parameter server and does not train; "
            "where run.role is 'server', call run.serve() instead"
        )

    def _live(self) -> None:
        try:
            asyncio.run(with_reminders(self._channel, self._keep_in_touch()))
        except HoldfastError as error:
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001  the root of this thread: the script must not wait for it
            traceback.print_exc()
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        with self._changed:
            self._trouble = reason
            self._changed.notify_all()
        if self.rank >= 0 and self._outcome is None:
            self._voice.die(reason, 1)

    async def _keep_in_touch(self) -> None:
        self._report()
        linking = asyncio.create_task(self._link.run())
        while not linking.done():
            await asyncio.wait({linking}, timeout=random.uniform(*self._spec.retry_s))
            if self._spec.heartbeat or self.rank < 0:
                self._report()
        linking.result()

    def _report(self) -> None:
        self._seq += 1
        self._link.report(Report(self._seq, self._status))

    def _note(self, note: Note) -> None:
        match note:
            case Happened():
                self._voice.tell(note.entry)
            case Waited():
                self._voice.say(note.reason)
            case OrderReceived(order=Run(world=world)):
                self._status = NodeStatus(NodePhase.RUNNING, world.generation)
                self._report()
                with self._changed:
                    self.rank = world.servers.index(self._name)
                    self._changed.notify_all()
            case OrderReceived(order=Finish(outcome=outcome)):
                if outcome.exit_code:
                    self._voice.die(outcome.reason, outcome.exit_code)
                if self.rank < 0:
                    # It was away while the cluster, which knew of it, was formed and trained to its end.
                    self._voice.die("the cluster has ended: there is nothing left to serve", 0)
                with self._changed:
                    self._outcome = outcome
                    self._changed.notify_all()
