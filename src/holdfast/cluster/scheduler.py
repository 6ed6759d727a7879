"""The scheduler of a self-forming cluster: a process of the user's script that serves instead of training."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from holdfast.agent.channel import Channel
from holdfast.cluster.reminders import with_reminders
from holdfast.cluster.rules import rules_of
from holdfast.errors import HoldfastError, SpecError
from holdfast.master.main import MasterSettings, serve
from holdfast.observe.report import render_outcome
from holdfast.spec.cluster import ClusterSpec

JOURNAL = "scheduler.db"


def schedule(spec: ClusterSpec) -> NoReturn:
    """Serve the cluster until every worker has left, then end this process."""
    listener = _listen(spec)
    _ask_no_name_server()
    # Each world has keys of its own in it, and its ranks need it only while they meet.
    store = dist.TCPStore(spec.host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    channel = None if spec.tls is None else Channel(spec.tls)
    with tempfile.TemporaryDirectory() as scratch:
        journal = Path(spec.recovery_path or scratch) / JOURNAL
        settings = MasterSettings(
            rules=rules_of(spec, store=(spec.host, store.port)),
            listen_fd=listener.detach(),
            journal=str(journal),
            tls=None if channel is None else channel.serving(),
        )
        try:
            outcome = asyncio.run(with_reminders(channel, serve(settings, tied=False)))
        except HoldfastError as error:
            sys.stderr.write(f"holdfast scheduler: {error}\n")
            raise SystemExit(error.exit_code) from None
        for leftover in journal.parent.glob(f"{JOURNAL}*"):
            leftover.unlink(missing_ok=True)
    if outcome is not None and (report := render_outcome(outcome)):
        sys.stderr.write(f"holdfast scheduler: {report}\n")
    sys.stderr.flush()
    os._exit(outcome.exit_code if outcome is not None else 1)


def _listen(spec: ClusterSpec) -> socket.socket:
    family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
    try:
        return socket.create_server((spec.host, spec.port), family=family, backlog=1024)
    except OSError as error:
        raise SpecError("scheduler", f"{spec.host}:{spec.port}", f"it cannot listen there: {error.strerror}") from error


def _ask_no_name_server() -> None:
    """Torch's store looks up the name of whoever connects, one after the other, and all wait for an answer.

    No script of the user's runs in this process, so nothing else is looked up in it.
    """
    with contextlib.suppress(AttributeError):  # A C library that has no such switch.
        ctypes.CDLL(None).__nss_configure_lookup(b"hosts", b"files")  # noqa: SLF001  public in <nss.h>
