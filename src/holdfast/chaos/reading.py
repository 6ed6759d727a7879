"""Fields of an experiment's file: each is read with its line, and refused with it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from holdfast.chaos.experiment import SIZES, Size
from holdfast.errors import SpecError
from holdfast.spec.yaml_tree import Mapping, Scalar, Tree
from holdfast.spec.yaml_tree import Sequence as Items


class Reader:
    def __init__(self, name: str, size: Size) -> None:
        self.name = name
        self.size: Size = size

    def at(self, line: int, shown: str) -> str:
        return f"{self.name}, line {line}: {shown}"

    def refuse_others(self, tree: Mapping, shown: str, valid: Sequence[str]) -> None:
        for key in tree.items:
            if key not in valid:
                near = get_close_matches(key, valid, n=1)
                hint = f"did you mean {near[0]}? There" if near else "there"
                path = f"{shown}.{key}" if shown else key
                raise SpecError(self.at(tree.lines[key], path), key, f"it is no field; {hint} is: {', '.join(valid)}")

    def of_size(self, tree: Tree, shown: str) -> Tree:
        """Where values differ by size, `{small: ..., normal: ...}`, the one that counts."""
        if not isinstance(tree, Mapping) or not set(tree.items) & set(SIZES):
            return tree
        self.refuse_others(tree, shown, SIZES)
        if self.size not in tree.items:
            raise SpecError(self.at(tree.line, shown), ", ".join(tree.items), f"it must have {' and '.join(SIZES)}")
        return tree.items[self.size]

    # --- fields of a mapping ----------------------------------------------------------------------------------

    def mapping(self, tree: Mapping, key: str, *, within: str = "") -> Mapping:
        shown = f"{within}.{key}" if within else key
        if key not in tree.items:
            raise SpecError(self.at(tree.line, shown), "", "it must be given")
        return self.as_mapping(tree.items[key], shown)

    def items(self, tree: Mapping, key: str) -> tuple[Tree, ...]:
        found = tree.items.get(key)
        if not isinstance(found, Items) or not found.items:
            raise SpecError(self.at(tree.lines.get(key, tree.line), key), key, "it must be a list with items")
        return found.items

    def text(self, tree: Mapping, key: str, *, within: str = "", default: str | None = None) -> str:
        shown = f"{within}.{key}" if within else key
        if key not in tree.items:
            if default is None:
                raise SpecError(self.at(tree.line, shown), "", "it must be given")
            return default
        return self.as_text(self.of_size(tree.items[key], shown), shown)

    def number(self, tree: Mapping, key: str, *, within: str, default: float | None = None) -> float:
        shown = f"{within}.{key}"
        if key not in tree.items and default is not None:
            return default
        return self.as_number(self.of_size(tree.items[key], shown), shown)

    def words(self, tree: Mapping, key: str, *, within: str) -> list[str]:
        shown = f"{within}.{key}"
        if key not in tree.items:
            return []
        return [self.as_text(item, shown) for item in self.as_items(self.of_size(tree.items[key], shown), shown)]

    def choice(self, tree: Mapping, key: str, valid: Sequence[str], *, within: str) -> str:
        return self.as_choice(tree.items[key], f"{within}.{key}", valid)

    # --- values -----------------------------------------------------------------------------------------------

    def as_mapping(self, tree: Tree, shown: str) -> Mapping:
        if isinstance(tree, Mapping):
            return tree
        raise SpecError(self.at(tree.line, shown), _said(tree), "it must have fields")

    def as_items(self, tree: Tree, shown: str) -> tuple[Tree, ...]:
        if isinstance(tree, Items):
            return tree.items
        raise SpecError(self.at(tree.line, shown), _said(tree), "it must be a list")

    def as_text(self, tree: Tree, shown: str) -> str:
        if isinstance(tree, Scalar) and not tree.is_null:
            return tree.text
        raise SpecError(self.at(tree.line, shown), _said(tree), "it must be a text")

    def as_number(self, tree: Tree, shown: str) -> float:
        text = self.as_text(tree, shown)
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise SpecError(self.at(tree.line, shown), text, "it must be a number, 0 or more")
        return number

    def as_whole(self, tree: Tree, shown: str) -> int:
        number = self.as_number(tree, shown)
        if number != int(number):
            raise SpecError(self.at(tree.line, shown), number, "it must be a whole number")
        return int(number)

    def as_choice(self, tree: Tree, shown: str, valid: Sequence[str]) -> str:
        text = self.as_text(tree, shown)
        if text not in valid:
            raise SpecError(self.at(tree.line, shown), text, f"it must be {' or '.join(valid)}")
        return text

    def texts(self, tree: Mapping, shown: str) -> dict[str, str]:
        return {
            key: self.as_text(self.of_size(value, f"{shown}.{key}"), f"{shown}.{key}")
            for key, value in tree.items.items()
        }


def _said(tree: Tree) -> Any:  # noqa: ANN401  it is only shown
    return tree.text if isinstance(tree, Scalar) else "a list" if isinstance(tree, Items) else "fields"
