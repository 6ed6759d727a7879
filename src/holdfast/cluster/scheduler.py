"""The scheduler of a self-forming cluster: a process of the user's script that serves instead of training."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

from holdfast.agent.channel import Channel
from holdfast.agent.store import open_store
from holdfast.cluster.custody import Custody
from holdfast.cluster.reminders import with_reminders
from holdfast.cluster.rules import rules_of
from holdfast.cluster.voice import SHOWN_BY_SCHEDULER, Voice, leave
from holdfast.core.ids import Address
from holdfast.errors import HoldfastError, SpecError, Stopped
from holdfast.master.main import MasterSettings, serve
from holdfast.observe.report import render_outcome
from holdfast.spec.cluster import ClusterSpec


def schedule(spec: ClusterSpec) -> NoReturn:
    """Serve the cluster until every worker has left, then end this process."""
    with tempfile.TemporaryDirectory() as scratch:
        custody = Custody(Path(spec.recovery_path or scratch))
        listener, for_store = _listen(spec, spec.port), _listen_again(spec, custody.store_port())
        # Each world has keys of its own in it, and its ranks need it only while they meet.
        store = open_store(spec.host, for_store.getsockname()[1], listen_fd=for_store.detach())
        custody.keep_store_port(store.port)
        channel = None if spec.tls is None else Channel(spec.tls)
        settings = MasterSettings(
            rules=rules_of(spec, store=(spec.host, store.port)),
            listen_fd=listener.detach(),
            journal=str(custody.journal),
            tls=None if channel is None else channel.serving(),
        )
        voice = Voice(spec.node_id, shown=SHOWN_BY_SCHEDULER)
        ends: list[dict[str, Any]] = []

        def tell(entry: dict[str, Any]) -> None:
            # Whoever goes then was told to.
            if not (ends and entry["kind"] == "node_lost"):
                voice.tell(entry)
            if entry["kind"] == "job_finished" or entry.get("decision") == "finish":
                ends.append(entry)

        try:
            serving = serve(settings, tied=False, tell=tell, stopped_by=_heeded())
            outcome = asyncio.run(with_reminders(channel, serving))
            assert not isinstance(outcome, Address), "workers host no master"
        except Stopped as error:
            voice.say(f"{error}{'; the others wait for the scheduler to be started again' if spec.recovery else ''}")
            raise SystemExit(error.exit_code) from None
        except HoldfastError as error:
            sys.stderr.write(f"holdfast scheduler: {error}\n")
            raise SystemExit(error.exit_code) from None
        custody.clear()
    if not ends:
        voice.say(f"the cluster whose state was in {spec.recovery_path} had ended; start again to form a new one")
    if outcome is not None and (report := render_outcome(outcome)):
        sys.stderr.write(f"holdfast scheduler: {report}\n")
    leave(outcome.exit_code if outcome is not None else 1)


def _heeded() -> list[signal.Signals]:
    """Signals that stop it; not those that whoever has started it had it ignore, as a shell does in the background."""
    if threading.current_thread() is not threading.main_thread():
        return []
    numbers = (signal.SIGINT, signal.SIGTERM)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _listen_again(spec: ClusterSpec, port: int) -> socket.socket:
    """At this port, or where the system likes if it has been taken since."""
    try:
        return _listen(spec, port)
    except SpecError as error:
        told = f"workers that were told to meet there, and have not yet, have to be started again: {error}"
        sys.stderr.write(f"holdfast scheduler: {told}\n")
        return _listen(spec, 0)


def _listen(spec: ClusterSpec, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
    try:
        return socket.create_server((spec.host, port), family=family, backlog=1024)
    except OSError as error:
        raise SpecError("scheduler", f"{spec.host}:{port}", f"it cannot listen there: {error.strerror}") from error
