"""`torch.distributed.new_group` for worlds that come and go.

A group asked for before the loop is only noted down, and stands for the real one, which is made anew with every world.
So a newcomer, which runs the same lines, has the same groups in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from holdfast.errors import SpecError

TAKING_A_GROUP = ("get_rank", "get_world_size", "get_group_rank", "get_global_rank", "get_process_group_ranks")
"""Functions beside the collectives that are given a group."""


class Subgroup:
    """What `new_group` returns: pass it as `group=` to functions of torch.distributed."""

    def __init__(self, ranks: list[int] | None, options: dict[str, Any]) -> None:
        self.ranks = ranks
        self._options = options
        self.live: Any = None
        """The group of this world; None outside of the loop."""

    def build(self, make: Callable[..., Any], *, connect: timedelta, timeout: timedelta) -> None:
        self.live = make(self.ranks, **{**self._options, "timeout": connect})
        if isinstance(self.live, dist.ProcessGroup):
            distributed_c10d._set_pg_timeout(timeout, self.live)  # noqa: SLF001  torch has no public way


class Subgroups:
    """Every group of a script, in the order in which it asked for them."""

    def __init__(self, *, may_be_asked: Callable[[], bool]) -> None:
        self._groups: list[Subgroup] = []
        self._may_be_asked = may_be_asked
        self._make: Callable[..., Any] = distributed_c10d.new_group

    def take_over(self) -> None:
        """From now on `new_group` is ours, and functions that take a group take ours too."""
        for module in (dist, distributed_c10d):
            module.new_group = self._ask  # type: ignore[attr-defined]
            for name in TAKING_A_GROUP:
                setattr(module, name, with_live_groups(getattr(module, name)))

    def build(self, *, connect: timedelta, timeout: timedelta) -> None:
        """Make those that this world does not have yet."""
        for group in self._groups:
            if group.live is None:
                group.build(self._make, connect=connect, timeout=timeout)

    def forget(self) -> list[Any]:
        """The world they were of is over: what it had."""
        ended = [group.live for group in self._groups]
        for group in self._groups:
            group.live = None
        return ended

    def on_devices(self) -> list[Any]:
        """What has to be aborted to end a wait on a device; one on the host is ended with its sockets."""
        return [
            group.live._get_backend(torch.device("cuda"))  # noqa: SLF001  torch has no public way
            for group in self._groups
            if isinstance(group.live, dist.ProcessGroup) and "nccl" in dist.get_backend(group.live)
        ]

    def _ask(self, ranks: list[int] | None = None, **options: Any) -> Subgroup:  # noqa: ANN401  as torch has it
        if not self._may_be_asked():
            raise SpecError("new_group()", ranks, "call it before the loop and not in run.once: newcomers need it too")
        group = Subgroup(ranks, options)
        self._groups.append(group)
        return group


def with_live_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with every group of ours replaced by the one it stands for."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  whatever the function takes and gives
        return function(*map(_live, args), **{name: _live(value) for name, value in kwargs.items()})

    return call


def _live(value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, Subgroup):
        return value
    if value.live is None:
        raise SpecError("group", value.ranks, "groups exist inside the loop only")
    return value.live
