"""RANK_TABLE_FILE: which ranks the workers of each address have, as somebody else has planned it."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

ADDRESS_KEYS = ("pod_ip", "host_ip", "server_id")
"""Where the address of a server may stand; the first that is there counts."""


class BadTable(ValueError):
    """The file says nothing that ranks could be taken from; the text says why."""


def read_rank_table(path: str, *, num_workers: int) -> dict[str, tuple[int, ...]]:
    """Address to ranks; together they are all ranks from 0 to the last, once each."""
    try:
        servers = json.loads(Path(path).read_text())["server_list"]
        table: dict[str, tuple[int, ...]] = {}
        for server in servers:
            address = _address(server)
            table[address] = table.get(address, ()) + tuple(int(device["rank_id"]) for device in server["device"])
    except OSError as error:
        raise BadTable(f"it cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise BadTable(f"it lacks {error}") from error
    except (ValueError, TypeError) as error:
        raise BadTable(f"it makes no sense: {error}") from error
    ranks = sorted(rank for each in table.values() for rank in each)
    if ranks != list(range(num_workers)):
        raise BadTable(f"its ranks are not 0 to {num_workers - 1}, once each")
    return table


def _address(server: dict[str, Any]) -> str:
    value = next((server[key] for key in ADDRESS_KEYS if server.get(key)), None)
    if value is None:
        raise BadTable(f"a server has none of {', '.join(ADDRESS_KEYS)}")
    return str(ipaddress.ip_address(value))
