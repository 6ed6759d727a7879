"""`holdfast explain`: what a process started here would be told by its environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from holdfast.spec.cluster import explain_cluster
from holdfast.spec.flags import Parser
from holdfast.spec.variables import Found

NOTHING = "no role is set (HOLDFAST_ROLE, or MS_ROLE): a script started here trains alone\n"


def explain(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="holdfast explain",
        description="Show every setting of a cluster that forms itself, as a process started here would use it: "
        "the value, the variable it comes from, and the variable that it overrules. "
        "The notes that it would print at its start come on standard error.",
        epilog="A value that is not valid is told as the process would tell it, and the exit code is 2. "
        "What each variable means: docs/cluster.md.",
    )
    parser.add_argument(
        "--json", action="store_true", help="One JSON object: name to value, source and overruled; and a list of notes."
    )
    args = parser.parse_args(argv)
    found, notes = explain_cluster()
    if args.json:
        told = {name: asdict(each) for name, each in found.items()} | ({"notes": list(notes)} if found else {})
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return 0
    sys.stdout.write(render_found(found) if found else NOTHING)
    sys.stdout.flush()
    for note in notes:
        sys.stderr.write(f"holdfast: {note}\n")
    return 0


def render_found(found: dict[str, Found]) -> str:
    """A line for each setting: its name, its value, and where that comes from."""
    rows = [(name, _line(each.value) or "(none)", _line(_origin(name, each))) for name, each in found.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}\n" for name, value, origin in rows)


def _line(text: str) -> str:
    return text.replace("\n", "\\n")


def _origin(name: str, found: Found) -> str:
    source = "set" if found.source == name else f"from {found.source}" if found.source.isupper() else found.source
    return f"{source}, overrules {found.overruled}" if found.overruled else source
