"""An entry: one record of the story with its number and time, as JSON-ready data.

The same entry goes to `--events`, to `/api/events` and over the wire to the other nodes' terminals.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.core.fleet.story import Record as FleetRecord
from holdfast.core.story import Record


def make_entry(record: Record | FleetRecord, *, seq: int, elapsed_s: float, wall: float) -> dict[str, Any]:
    """`record` as JSON-ready data; the record's own fields lie beside the common ones."""
    return {
        "seq": seq,
        "at": datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds"),
        "elapsed_s": elapsed_s,
        "kind": record.kind,
        "level": record.level,
        "text": str(record),
        **msgspec.to_builtins(record, str_keys=True),
    }
