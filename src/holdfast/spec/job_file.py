"""A job file: from YAML to what was written for each field, and where. What it means is `submit.py`'s."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches

from holdfast.errors import SpecError
from holdfast.spec import yaml_tree
from holdfast.spec.job_fields import BY_PATH, FIELDS, ROLE, SECTIONS, Field
from holdfast.spec.job_kinds import NAME, Written


@dataclass(frozen=True, slots=True)
class Entry:
    """What was written for a field, and where."""

    written: Written
    source: str


@dataclass(frozen=True, slots=True)
class RoleDraft:
    """What a file says of a role, by the path of the field in the table."""

    entries: dict[str, Entry]
    source: str


@dataclass(frozen=True, slots=True)
class Draft:
    """What a file says: of the job, by the path of the field in the table, and of each role."""

    entries: dict[str, Entry]
    roles: dict[str, RoleDraft] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_job_file(tree: yaml_tree.Mapping, *, name: str) -> Draft:
    return _JobFile(name).read(tree)


class _JobFile:
    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, tree: yaml_tree.Mapping) -> Draft:
        entries: dict[str, Entry] = {}
        roles: dict[str, RoleDraft] = {}
        for key, value in tree.items.items():
            if key == "roles":
                roles = self._read_roles(value, tree.lines[key])
            elif key in SECTIONS:
                entries |= self._read_section(value, shown=key, section=key)
            else:
                entries |= self._read_field(key, value, line=tree.lines[key], shown=key, path=key)
        return Draft(entries, roles)

    def _read_roles(self, tree: yaml_tree.Tree, line: int) -> dict[str, RoleDraft]:
        roles = self._mapping(tree, "roles", "roles by their names, as in 'roles: {worker: {nodes: 4}}'")
        if not roles.items:
            raise SpecError(self._at(line, "roles"), "{}", "a job has at least one role")
        found = {}
        for role, fields in roles.items.items():
            NAME.parse(role, self._at(roles.lines[role], "roles"))
            shown = f"roles.{role}"
            entries = self._read_section(fields, shown=shown, section=ROLE)
            found[role] = RoleDraft(entries, self._at(roles.lines[role], shown))
        return found

    def _read_section(self, tree: yaml_tree.Tree, *, shown: str, section: str) -> dict[str, Entry]:
        fields = self._mapping(tree, shown, f"fields, as {', '.join(_names(section)[:3])}")
        entries: dict[str, Entry] = {}
        for key, value in fields.items.items():
            line = fields.lines[key]
            entries |= self._read_field(key, value, line=line, shown=f"{shown}.{key}", path=f"{section}.{key}")
        return entries

    def _read_field(self, key: str, tree: yaml_tree.Tree, *, line: int, shown: str, path: str) -> dict[str, Entry]:
        """What is written for a field, by its path; nothing if it has no value."""
        field = BY_PATH.get(path)
        if field is None:
            section = path.removesuffix(key).removesuffix(".")
            names = _names(section)
            near = get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]}? There" if near else "there"
            raise SpecError(self._at(line, shown), key, f"it is no field; {hint} is: {', '.join(names)}")
        if isinstance(tree, yaml_tree.Scalar) and tree.is_null:
            return {}
        source = self._at(tree.line, shown)
        written = _written(tree, field, source)
        field.kind.parse(written, source)
        return {path: Entry(written, source)}

    def _mapping(self, tree: yaml_tree.Tree, shown: str, valid: str) -> yaml_tree.Mapping:
        if isinstance(tree, yaml_tree.Mapping):
            return tree
        value = tree.text if isinstance(tree, yaml_tree.Scalar) else "a list"
        raise SpecError(self._at(tree.line, shown), value, f"it must have {valid}")

    def _at(self, line: int, shown: str) -> str:
        return f"{self._name}, line {line}: {shown}"


def _names(section: str) -> list[str]:
    names = [field.name for field in FIELDS if field.section == section]
    return names if section else [*names, *SECTIONS]


def _written(tree: yaml_tree.Tree, field: Field, source: str) -> Written:
    """What a tree says, in a form that the field takes."""
    written: Written
    if isinstance(tree, yaml_tree.Scalar):
        written = tree.text
    elif isinstance(tree, yaml_tree.Sequence):
        written = tuple(_item(each, source) for each in tree.items)
    else:
        written = {name: _item(each, f"{source}.{name}") for name, each in tree.items.items()}
    if type(written) not in field.kind.takes:
        forms: dict[type, str] = {str: "one value", tuple: "a list", dict: "names with values"}
        wanted = " or ".join(forms[each] for each in field.kind.takes)
        raise SpecError(source, written if isinstance(written, str) else forms[type(written)], f"it must be {wanted}")
    return field.kind.join.join(written) if field.kind.join and isinstance(written, tuple) else written


def _item(tree: yaml_tree.Tree, source: str) -> str:
    if isinstance(tree, yaml_tree.Scalar):
        return tree.text
    raise SpecError(source, "something nested", "its items must be single values")
