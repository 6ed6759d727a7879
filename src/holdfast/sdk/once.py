"""Results of what a job does once, before its loop: kept in the store, for workers that come later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from holdfast.core.ids import Address
from holdfast.sdk import stores, tree
from holdfast.sdk.groups import Severed
from holdfast.sdk.membership import Membership

R = TypeVar("R")

STORE_TIMEOUT = timedelta(seconds=60)


class Once:
    """One call of `run.once`, told from the others by its number in the script."""

    def __init__(self, place: Membership, *, key: str) -> None:
        self._place = place
        self._key = f"once/{key}"

    def run(self, function: Callable[[], R], *, recover: Callable[[Exception, int], None]) -> R:
        while True:
            join = self._place.newest()
            store = stores.connect(Address(join.store_host, join.store_port), timeout=STORE_TIMEOUT)
            if not join.fresh and store.check([self._key]):
                result: R = tree.from_bytes(store.get(self._key))
                return result
            try:
                self._place.meet()
                result = function()
                if self._place.rank == 0:
                    store.set(self._key, tree.to_bytes(result, name="once()"))
            except Severed:
                continue
            except Exception as error:  # noqa: BLE001  the boundary to the user's function
                recover(error, 0)
                continue
            return result
