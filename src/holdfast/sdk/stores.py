"""Connections to the store through which the ranks of a world find each other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from holdfast.core.ids import Address
from holdfast.wire.names import without_names


def connect(store: Address, *, timeout: timedelta, check: Callable[[], None] = lambda: None) -> Any:  # noqa: ANN401  torch does not export the type
    """A client of a store; while nobody answers there, torch tries again, until it is too late or `check` raises."""
    return without_names(
        lambda: dist.TCPStore(  # type: ignore[attr-defined]
            store.host, store.port, is_master=False, timeout=timeout, wait_for_workers=False
        ),
        check=check,
    )
