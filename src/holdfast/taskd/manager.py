"""TaskD's manager: the master of the job, in this process; or an onlooker, where the job has one already."""

from __future__ import annotations

import asyncio
import errno
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.agent.channel import Channel
from holdfast.cluster.reminders import with_reminders
from holdfast.core.ids import Address, Outcome
from holdfast.errors import JobError, SpecError
from holdfast.master.main import MasterSettings, serve
from holdfast.observe.report import render_outcome
from holdfast.spec.manager import ManagerSpec, load_manager
from holdfast.taskd.convention import answers, log, not_before
from holdfast.taskd.following import follow

_specs: list[ManagerSpec] = []
"""What was asked for last, if anything: TaskD's interface has no object to keep it in."""


@answers
def init_taskd_manager(config: Mapping[str, Any]) -> None:
    """Check the configuration; nothing listens before the start."""
    _specs.clear()
    _specs.append(load_manager(config))


@answers
def start_taskd_manager() -> None:
    """Run the job's master until the job is over; a job that fails is a failure here too."""
    if not _specs:
        raise not_before("init_taskd_manager")
    spec = _specs[0]
    for note in spec.notes:
        log.warning("%s", note)
    listener = _listen(spec)
    outcome = asyncio.run(follow(spec, Address(spec.host, spec.port)) if listener is None else _serve(spec, listener))
    if report := render_outcome(outcome):
        raise JobError(report)


async def _serve(spec: ManagerSpec, listener: socket.socket) -> Outcome:
    channel = None if spec.tls is None else Channel(spec.tls)
    with tempfile.TemporaryDirectory(prefix="holdfast_") as scratch:
        settings = MasterSettings(
            rules=spec.rules,
            listen_fd=listener.detach(),
            journal=str(Path(scratch) / "journal.db"),
            token=spec.token,
            tls=None if channel is None else channel.serving(),
        )
        result = await with_reminders(channel, serve(settings, tied=False))
    assert result is not None, "a master that is tied to nobody ends with its job, or where another one goes on"
    return result if isinstance(result, Outcome) else await follow(spec, result)


def _listen(spec: ManagerSpec) -> socket.socket | None:
    """A listener; None if somebody listens there already."""
    family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
    try:
        return socket.create_server((spec.host, spec.port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        where = f"{spec.host}:{spec.port}"
        raise SpecError(
            "POD_IP (or cluster_infos)", where, f"the master cannot listen there: {error.strerror}"
        ) from error
