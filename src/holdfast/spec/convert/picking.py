"""Picking fields out of a foreign file, and telling what was not picked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from holdfast.errors import SpecError
from holdfast.spec.job_fields import BY_PATH
from holdfast.spec.job_file import Entry
from holdfast.spec.job_kinds import Written
from holdfast.spec.yaml_tree import Mapping, Scalar, Sequence, Tree

Path: TypeAlias = tuple[str | int, ...]
Entries: TypeAlias = dict[str, Entry]

REASONS = {
    "image": "a node runs what is installed on this machine",
    "imagePullPolicy": "there are no images",
    "volumes": "a node sees the files of this machine",
    "volumeMounts": "a node sees the files of this machine",
    "namespace": "there are no namespaces of jobs",
    "ports": "every node has an address of its own, and the master its port",
    "nodeSelector": "nodes are alike",
    "affinity": "nodes are alike",
    "tolerations": "nodes are alike",
    "hostNetwork": "see platform.network",
    "schedulerName": "nodes are made in order",
    "queue": "there are no queues",
    "restartPolicy": "a node that is lost is replaced by another, see relaunch",
    "priority": "there are no priorities",
    "autoScale": "nothing is scaled by itself",
    "optimizeMode": "nothing is tuned by itself",
    "successPolicy": "a job has succeeded when every worker has",
}


class Picker:
    """One document, and which of its fields have been used."""

    def __init__(self, tree: Mapping, *, file: str) -> None:
        self._tree = tree
        self._file = file
        self._used: set[Path] = {("apiVersion",), ("kind",)}
        self._notes: list[str] = []

    # --- reading ----------------------------------------------------------------------------------------------

    def find(self, path: Path) -> Tree | None:
        tree: Tree | None = self._tree
        for key in path:
            if isinstance(tree, Mapping):
                tree = tree.items.get(str(key))
            elif isinstance(tree, Sequence) and isinstance(key, int) and key < len(tree.items):
                tree = tree.items[key]
            else:
                return None
        return tree

    def text(self, *path: str | int) -> str | None:
        """A field that holds one value, which is now used; None if it is not there."""
        tree = self.find(path)
        if tree is None or (isinstance(tree, Scalar) and tree.is_null):
            return None
        self._used.add(path)
        if not isinstance(tree, Scalar):
            raise SpecError(self.at(path), "something nested", "it must be one value")
        return tree.text

    def texts(self, *path: str | int) -> tuple[str, ...]:
        tree = self.find(path)
        if tree is None:
            return ()
        self._used.add(path)
        items = tree.items if isinstance(tree, Sequence) else (tree,)
        found = tuple(item.text for item in items if isinstance(item, Scalar))
        if isinstance(tree, Mapping) or len(found) != len(items):
            raise SpecError(self.at(path), "something nested", "it must be a list of texts")
        return found

    def keys(self, *path: str | int) -> list[str]:
        tree = self.find(path)
        return list(tree.items) if isinstance(tree, Mapping) else []

    def count(self, *path: str | int) -> int:
        tree = self.find(path)
        return len(tree.items) if isinstance(tree, Sequence) else 0

    def at(self, path: Path) -> str:
        """Where a field is, as errors and notes say it."""
        tree = self.find(path)
        name = ".".join(str(key) for key in path)
        return f"{self._file}, line {tree.line if tree else 1}: {name}"

    def entry(self, field: str, written: Written, path: Path) -> dict[str, Entry]:
        """What a field of ours becomes; not valid here means not valid there."""
        source = self.at(path)
        BY_PATH[field].kind.parse(written, source)
        return {field: Entry(written, source)}

    # --- telling ----------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self._notes.append(text)

    def note_field(self, path: Path, why: str) -> None:
        self._used.add(path)
        self._notes.append(f"{self.at(path)} {why}")

    def notes(self) -> list[str]:
        """What was noted, and a note for everything that nobody has used."""
        return [*self._notes, *self._unused(self._tree, ())]

    def _unused(self, tree: Tree, path: Path) -> Iterator[str]:
        if path in self._used:
            return
        inside = [used for used in self._used if used[: len(path)] == path and len(used) > len(path)]
        if not inside and path:
            reason = REASONS.get(str(path[-1]), "")
            yield f"{self.at(path)} does nothing here" + (f": {reason}" if reason else "")
            return
        if isinstance(tree, Mapping):
            for key, value in tree.items.items():
                yield from self._unused(value, (*path, key))
        elif isinstance(tree, Sequence):
            for index, value in enumerate(tree.items):
                yield from self._unused(value, (*path, index))
