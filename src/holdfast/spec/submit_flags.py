"""The command line of `holdfast submit`: the fields of a job as flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from holdfast.errors import SpecError
from holdfast.spec.flags import Parser
from holdfast.spec.job_fields import FIELDS, ROLE, SECTIONS, Field
from holdfast.spec.job_file import Entry
from holdfast.spec.job_kinds import ON, SWITCH, Written


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    file: str | None
    role: str | None
    entries: dict[str, Entry]
    """What flags say, by the path of the field."""
    dry_run: bool
    json: bool


def submit_parser() -> Parser:
    parser = Parser(
        prog="holdfast submit",
        usage="holdfast submit [FILE] [flags] [-- COMMAND ...]",
        description="Run a job on nodes that are made for it, and replaced when they are lost. What the job is, FILE "
        "says, or flags, or both: flags win.",
        epilog="docs/jobs.md has every field. Exit code: that of the job, as of 'holdfast run'; 2 if something is "
        "not valid, and then nothing was started.",
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="Job file (YAML); DLRover's and MindCluster's are converted."
    )
    parser.add_argument("--dry-run", action="store_true", help="Only show every field and where it comes from.")
    parser.add_argument("--json", action="store_true", help="With --dry-run: as one JSON object.")
    for section in ("", *SECTIONS):
        title = section or "job"
        group = parser.add_argument_group(title)
        if section == "roles":
            group.add_argument(
                "--role",
                metavar="NAME",
                help="Name of the role; in a job of several, the one that is meant by the other flags. [worker]",
            )
        for field in FIELDS:
            if field.section.split(".")[0] == section:
                _add(group, field)
    return parser


def _add(group: argparse._ArgumentGroup, field: Field) -> None:
    shown = (field.help + (f" [{field.default}]" if field.default else "")).replace("%", "%%")
    told: dict[str, Any] = {"action": "append" if dict in field.kind.takes else "store"}
    if field.is_switch:
        told = {"nargs": "?", "const": ON}
    group.add_argument(*_names(field), dest=f"field_{field.dest}", metavar=field.metavar, help=shown, **told)


def _names(field: Field) -> list[str]:
    return [field.flag] if "-" not in field.flag[2:] else [field.flag, "--" + field.dest]


def parse_submit(argv: Sequence[str]) -> Asked:
    """Everything after -- is the command."""
    words = list(argv)
    command: tuple[str, ...] | None = None
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], tuple(words[at + 1 :])
    args = submit_parser().parse_args(_switched(words))
    if args.file is None and command is None and args.field_command is None:
        raise SpecError("FILE", None, "give a job file, or a command after --; see 'holdfast submit --help'")
    entries: dict[str, Entry] = {}
    for field in FIELDS:
        given = getattr(args, f"field_{field.dest}")
        if given is not None:
            written: Written = _variables(given, field.flag) if isinstance(given, list) else given
            field.kind.parse(written, field.flag)
            entries[field.path] = Entry(written, field.flag)
    if command is not None:
        entries[f"{ROLE}.command"] = Entry(command, "--")
    return Asked(file=args.file, role=args.role, entries=entries, dry_run=args.dry_run, json=args.json)


def _switched(words: Sequence[str]) -> list[str]:
    """Switches without a value are on; said outright, lest they take FILE for it."""
    switches = {name for field in FIELDS if field.is_switch for name in _names(field)}
    bare = [word in switches and after not in SWITCH for word, after in pairwise([*words, ""])]
    return [f"{word}={ON}" if is_bare else word for word, is_bare in zip(words, bare, strict=True)]


def _variables(given: Sequence[str], flag: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise SpecError(flag, item, "it must be NAME=VALUE")
        variables[name] = value
    return variables
