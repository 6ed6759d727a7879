"""The command of a job as `holdfast run` on a node takes it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import SpecError

PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class NodeCommand:
    how: tuple[str, ...]
    """Flags that say how the words are run: none for a script."""
    words: tuple[str, ...]


def read_command(words: Sequence[str], *, source: str, directory: str | None) -> NodeCommand:
    """Scripts and programs are looked up from here, or from the nodes' directory where one is named."""
    rest = list(words)
    is_python = bool(PYTHON.fullmatch(rest[0]))
    if is_python:
        rest = rest[1:]
        while rest and rest[0] == "-u":
            rest = rest[1:]
    if is_python and rest[:1] == ["-m"] and len(rest) > 1:
        return NodeCommand(("--module",), tuple(rest[1:]))
    if is_python and (not rest or rest[0].startswith("-")):
        shown = " ".join(words)
        raise SpecError(source, shown, "after python there must be a script, or -m and a module; -u does nothing")
    if is_python or rest[0].endswith(".py"):
        script = os.path.abspath(os.path.join(directory or "", rest[0]))
        if not os.path.isfile(script):
            raise SpecError(source, rest[0], f"there is no such script: {script}")
        return NodeCommand((), (script, *rest[1:]))
    program = os.path.abspath(os.path.join(directory or "", rest[0])) if "/" in rest[0] else rest[0]
    return NodeCommand(("--no-python",), (program, *rest[1:]))
