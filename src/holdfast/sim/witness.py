"""What must hold of the master's story, and which rare paths it took."""

from __future__ import annotations

from holdfast.core import job as core
from holdfast.core.story import (
    JobFinished,
    MasterRestored,
    NodeLost,
    NodeRefused,
    Record,
    Resizing,
    Stopping,
    WorkerFailed,
    WorldFormed,
)
from holdfast.sim.stage import Stage


class Witness:
    """Outlives every master, so it notices when one forgets what another has said."""

    def __init__(self, stage: Stage) -> None:
        self._trace = stage.trace
        self._fleet = stage.fleet
        self._published = 0
        self._known: set[str] = set()

    def see(self, event: core.Event, job: core.Job) -> None:
        """An event is about to be handled."""
        match event:
            case core.StatusReported():
                member = job.members.get(event.node)
                if member is not None and member.nonce == event.nonce and event.seq <= member.seq:
                    self._trace.reach("status doubled or overtaken")
            case core.NodeRegistered():
                member = job.members.get(event.node)
                if event.nonce in self._known and (member is None or member.nonce != event.nonce):
                    self._trace.reach("registered again after being given up")
                self._known.add(event.nonce)
            case core.EndRequested():
                if job.phase is core.Phase.STOPPING:
                    self._trace.reach("end requested while stopping")
            case _:
                pass

    def hear(self, record: Record) -> None:
        """A record was told."""
        trace = self._trace
        trace.say(f"| {record}")
        match record:
            case WorldFormed():
                newer = record.generation > self._published
                trace.require(newer, f"generation {record.generation} after {self._published}")
                self._published = record.generation
                trace.reach("world formed")
            case NodeLost():
                for mark in ("silent", "did not stop", "is dead"):
                    if mark in record.reason:
                        trace.reach(f"node lost: {mark}")
            case NodeRefused():
                if "is held by" in record.reason:
                    trace.reach("name refused while its holder may live")
            case WorkerFailed(failure=failure):
                ran = self._fleet.generation_of(failure.pid)
                fits = failure.pid == 0 or ran == record.generation
                trace.require(fits, f"a failure of {ran} is held against {record.generation}")
            case Stopping():
                if "restarts are" in record.reason:
                    trace.reach("restart budget spent")
            case Resizing():
                trace.reach("grown" if record.reason.endswith("joined") else "shrunk by a leaving node")
            case MasterRestored():
                trace.reach("master restored")
            case JobFinished():
                trace.require(bool(record.outcome.reason), "the job ended without a reason")
                if "no world within" in record.outcome.reason:
                    trace.reach("no world in time")
            case _:
                pass
