"""RANK_TABLE_FILE: which ranks the workers of each address have, as somebody else has planned it."""

from __future__ import annotations

import ipaddress
import json
from contextlib import suppress
from pathlib import Path
from reprlib import repr as short
from typing import Any

ADDRESS_KEYS = ("pod_ip", "host_ip", "server_id")
"""Where the address of a server may stand; the first that is there counts."""


class BadTable(ValueError):
    """The file says nothing that ranks could be taken from; the text says why."""


def read_rank_table(path: str, *, num_workers: int) -> dict[str, tuple[int, ...]]:
    """Address to ranks; together they are all ranks from 0 to the last, once each."""
    table: dict[str, tuple[int, ...]] = {}
    for server in _list(_load(path), "server_list"):
        address = _address(server)
        table[address] = table.get(address, ()) + tuple(_rank(device) for device in _list(server, "device"))
    ranks = sorted(rank for each in table.values() for rank in each)
    if ranks != list(range(num_workers)):
        raise BadTable(f"its ranks are not 0 to {num_workers - 1}, once each")
    return table


def _load(path: str) -> object:
    try:
        return json.loads(Path(path).read_text())
    except OSError as error:
        raise BadTable(f"it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadTable(f"it makes no sense: {error}") from error


def _field(holder: object, key: str) -> Any:  # noqa: ANN401  whatever the file has there
    if not isinstance(holder, dict):
        raise BadTable(f"it makes no sense: {short(holder)} is not an object with {key!r}")
    if key not in holder:
        raise BadTable(f"it lacks {key!r}")
    return holder[key]


def _list(holder: object, key: str) -> list[Any]:
    value = _field(holder, key)
    if not isinstance(value, list):
        raise BadTable(f"it makes no sense: {key!r} is {short(value)}, not a list")
    return value


def _address(server: object) -> str:
    keys = [key for key in ADDRESS_KEYS if isinstance(server, dict) and server.get(key)]
    if not keys:
        raise BadTable(f"a server has none of {', '.join(ADDRESS_KEYS)}")
    value = _field(server, keys[0])
    # Of a number, an address would be made too.
    with suppress(ValueError):
        return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
    raise BadTable(f"it makes no sense: {keys[0]!r} is {short(value)}, not an address")


def _rank(device: object) -> int:
    value = _field(device, "rank_id")
    with suppress(ValueError):
        return int(value if type(value) in (int, str) else "")
    raise BadTable(f"it makes no sense: 'rank_id' is {short(value)}, not a number")
