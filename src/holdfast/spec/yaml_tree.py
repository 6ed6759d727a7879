"""YAML as plain values that remember their lines, so that an error can point at what it is about.

Scalars stay texts: `3:4` and `on` mean what was written, not what YAML 1.1 makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import yaml

from holdfast.errors import SpecError

MOST_BYTES = 1 << 20
MOST_VALUES = 20_000
"""Aliases can name a small text a billion times."""
MOST_LEVELS = 40


@dataclass(frozen=True, slots=True)
class Scalar:
    text: str
    line: int
    is_null: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Tree, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Mapping:
    items: dict[str, Tree]
    line: int
    lines: dict[str, int]
    """Where each key stands."""


Tree: TypeAlias = Scalar | Sequence | Mapping


def read_trees(path: str) -> list[Mapping]:
    """The documents of a file; each has to be a mapping."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SpecError("FILE", path, f"it cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise SpecError("FILE", path, f"it has {len(data)} bytes, and a job needs at most {MOST_BYTES}")
    return parse_trees(data, name=path)


def parse_trees(data: bytes | str, *, name: str) -> list[Mapping]:
    reader = _Reader(name)
    try:
        nodes = list(yaml.compose_all(data, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{name}, line {line}", _line(data, line), f"it is no YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        raise SpecError(name, error.character, f"it is no YAML: {error.reason}") from None
    except RecursionError:
        raise SpecError(name, "", f"it must not be nested deeper than {MOST_LEVELS} levels") from None
    trees = [reader.read(node, level=0) for node in nodes]
    documents = [tree for tree in trees if isinstance(tree, Mapping)]
    if not documents or len(documents) != len(trees):
        raise SpecError(name, "a list or a text" if trees else "", "it must have fields, as in 'name: mnist'")
    return documents


def _line(data: bytes | str, number: int) -> str:
    """What is written there; of what ends too soon, the last line."""
    text = data if isinstance(data, str) else data.decode(errors="replace")
    lines = text.splitlines() or [""]
    return lines[min(number, len(lines)) - 1].strip()


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._num_values = 0

    def read(self, node: yaml.Node, *, level: int) -> Tree:
        line = node.start_mark.line + 1
        self._num_values += 1
        if level > MOST_LEVELS or self._num_values > MOST_VALUES:
            limits = f"at most {MOST_LEVELS} levels and {MOST_VALUES} values, aliases counted each time"
            raise SpecError(f"{self._name}, line {line}", "too much", f"there must be {limits}")
        if isinstance(node, yaml.SequenceNode):
            return Sequence(tuple(self.read(item, level=level + 1) for item in node.value), line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, line, level)
        return Scalar(node.value, line, node.tag == "tag:yaml.org,2002:null")

    def _mapping(self, node: yaml.MappingNode, line: int, level: int) -> Mapping:
        items: dict[str, Tree] = {}
        lines: dict[str, int] = {}
        for key_node, value in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise SpecError(f"{self._name}, line {at}", "a key that is no text", "fields have names")
            key = key_node.value
            if key in items:
                raise SpecError(f"{self._name}, line {at}", key, f"it is written twice, first on line {lines[key]}")
            items[key], lines[key] = self.read(value, level=level + 1), at
        return Mapping(items, line, lines)
