"""The link of a worker or a server to its scheduler: each is a node of its own."""

from __future__ import annotations

import math
import random
import secrets
import sys
from collections.abc import Callable

from holdfast.agent.channel import Channel
from holdfast.agent.link import Identity, Link, Manners, Note
from holdfast.cluster.addresses import use_own_address
from holdfast.cluster.rules import rules_of
from holdfast.cluster.voice import SHOWN, Voice
from holdfast.core.backoff import Backoff
from holdfast.core.ids import Address
from holdfast.core.search import Search
from holdfast.spec.cluster import ClusterSpec
from holdfast.spec.job import Command, LogSpec, NodeSpec

MIN_FIRST_PAUSE_S, MAX_FIRST_PAUSE_S = 0.25, 1.0
TRIES_PER_S = 250.0
"""Of all workers together, about, to find a scheduler that is not there yet. It may well be the last to come, and then
all wait for the one of them that pauses longest."""


def make_link(
    spec: ClusterSpec,
    notify: Callable[[Note], None],
    *,
    voice: Voice,
    channel: Channel | None,
    is_placed: Callable[[], bool],
    is_server: bool = False,
) -> Link:
    """With recovery on, whoever has a place in the cluster waits for a lost scheduler as long as it takes; without, for
    as long as the scheduler would wait for it."""

    def away_s() -> float:
        if not is_placed():
            return spec.topo_timeout_s
        return math.inf if spec.recovery or not spec.heartbeat else spec.node_timeout_s

    backoff = Backoff(most_s=min(MAX_FIRST_PAUSE_S, max(MIN_FIRST_PAUSE_S, spec.num_workers / TRIES_PER_S)))
    node = NodeSpec(
        rules=rules_of(spec),
        command=Command(how="script", target=sys.argv[0]),
        num_workers=0 if is_server else 1,
        logs=LogSpec(),
        node_rank=spec.rank,
    )
    manners = Manners(
        first_pause_s=lambda attempt: backoff.delay_s(attempt, draw=random.random()),
        pause_s=lambda attempt: random.uniform(*spec.retry_s),
        answer_s=spec.receive_timeout_s,
        local_ip=spec.worker_ip,
        away_s=away_s,
    )
    return Link(
        Search(Address(spec.host, spec.port)),
        node,
        Identity(voice.node, secrets.token_hex(8), use_own_address(spec), 0, is_server=is_server, hears=SHOWN),
        notify,
        seen=lambda: voice.seen,
        manners=manners,
        tls=None if channel is None else channel.dialling(),
    )
