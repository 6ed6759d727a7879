"""Fill the generated parts of the docs from the code: flags, variables, fields, events.

A page is written by hand around regions between `<!-- begin NAME -->` and `<!-- end NAME -->`; only these are
replaced. With --check nothing is written, and the exit code is 1 if a page is stale.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.agent.environment import worker_env
from holdfast.chaos.expectations import EXPECTATIONS
from holdfast.chaos.experiment_file import load_experiment, names
from holdfast.chaos.faults import FAULTS
from holdfast.core.health.story import CheckRow
from holdfast.core.ids import Address, NodePhase, Outcome, Placement, WorkerFailure, World
from holdfast.core.story import Record
from holdfast.observe.entries import make_entry
from holdfast.spec.cluster import VARIABLES as CLUSTER_VARIABLES
from holdfast.spec.flags import DIFFERS, FLAGS, Flag
from holdfast.spec.job import Command, JobRules, LogSpec, NodeSpec
from holdfast.spec.job_fields import FIELDS, SECTIONS, Field
from holdfast.spec.job_schema import job_schema

DOCS = Path(__file__).parents[1] / "docs"
SCHEMA = DOCS / "job.schema.json"
EXAMPLES = DOCS / "events.jsonl"
"""One entry of each kind from real jobs; the record in it must be one that the code could emit today."""

RECORDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Record)}
VALUES: tuple[type[Any], ...] = (WorkerFailure, Placement, Outcome, CheckRow)
"""Types of fields that are objects themselves."""

VARIABLES = {
    "RANK": "Rank of this worker among all workers of the job.",
    "LOCAL_RANK": "Rank of this worker on its node; 0 for all with `--virtual-local-rank`.",
    "GROUP_RANK": "Rank of the node.",
    "ROLE_RANK": "The same as `RANK`: every role is a world of its own.",
    "ROLE_NAME": "What `--role` says.",
    "LOCAL_WORLD_SIZE": "Workers on this node.",
    "WORLD_SIZE": "Workers in the job.",
    "GROUP_WORLD_SIZE": "Nodes in the job.",
    "ROLE_WORLD_SIZE": "The same as `WORLD_SIZE`.",
    "MASTER_ADDR": "Host of the workers' store: the node with `GROUP_RANK` 0.",
    "MASTER_PORT": "Port of the workers' store; it stays the same as long as that node stays the first.",
    "TORCHELASTIC_RESTART_COUNT": "Starts of the workers after the first; torchrun counts those after failures only.",
    "TORCHELASTIC_MAX_RESTARTS": "What `--max-restarts` says.",
    "TORCHELASTIC_RUN_ID": "Id of the job (`--rdzv-id`).",
    "TORCHELASTIC_USE_AGENT_STORE": "`True`: no worker serves the store, all are clients of it.",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "What `--signals-to-handle` says.",
    "TORCHELASTIC_ERROR_FILE": "Where this worker leaves the traceback of an uncaught exception.",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "`1` unless you set it.",
    "OMP_NUM_THREADS": "`1` if a node has several workers and you did not set it.",
    "HOLDFAST_AGENT": "Socket on which the SDK in this worker speaks to its agent.",
    "HOLDFAST_BEACON": "File in which the SDK shows how far this worker is.",
    "HOLDFAST_LAUNCHED_AT": "When the agent asked for this process, in seconds of the machine's monotonic clock.",
    "HOLDFAST_GENERATION": "Number of the world this worker belongs to; grows with every start. torchrun has no such.",
}

COMMON = {
    "seq": "Number of the entry within the job, from 1. Grows by one each time.",
    "at": "When, by the clock of the master's machine, in UTC.",
    "elapsed_s": "Seconds since the master began the job, by its monotonic clock. Subtract these, not `at`.",
    "kind": "What happened: one of the kinds below. Decides which other fields there are.",
    "level": "Who should look: `info` nobody, `warning` somebody sometime.",
    "text": "The entry as a sentence, as the terminal shows it. Not for parsing.",
}

MEANINGS = {
    "decision": "What follows.",
    "check_id": "Number of the check; each check has one of its own.",
    "exit_code": "Exit code; null if a signal ended it.",
    "failure": "How it ended.",
    "first_rank": "Rank of its first worker; the others follow.",
    "generation": "Number of the world this is about.",
    "group_rank": "The node's number in the world (`GROUP_RANK`).",
    "host": "Host name of the node.",
    "local_rank": "`LOCAL_RANK` of the worker.",
    "max_restarts": "What `--max-restarts` says.",
    "node": "Name of the node: its host name, with a suffix if the job may have several nodes.",
    "num_workers": "Workers on the node.",
    "outcome": "How the job ended.",
    "pid": "Process id.",
    "placements": "The nodes of the world, by group rank.",
    "rank": "`RANK` of the worker.",
    "reason": "Why, as a sentence.",
    "restart_count": "`TORCHELASTIC_RESTART_COUNT` of this world's workers.",
    "restarts": "How often the workers were started again, for whatever reason.",
    "restarts_used": "Failures within the last hour that were answered with a restart; this one too, if it is.",
    "signal": "Number of the signal that ended it; null if it exited.",
    "world_size": "Workers in the world.",
    "rows": "The nodes that took part, by name.",
    "running": "Its workers run, or are about to.",
    "JobRules.job_id": "Id of the job (`--rdzv-id`).",
    "JobRules.min_nodes": "The least nodes a world needs (`--nnodes`).",
    "JobRules.max_nodes": "The most nodes a world has; others wait as spares.",
    "NodeJoined.pid": "Process id of the agent.",
    "Outcome.exit_code": "Exit code of `holdfast run` on every node of the job.",
    "Outcome.root_cause": "The worker to blame, if one is.",
    "Outcome.consequences": "Other workers that ended badly in the same generation.",
}


class Stale(Exception):
    """The docs cannot be generated; the text says what has to be added and where."""


# --- the command line -----------------------------------------------------------------------------------------


def flag_tables() -> str:
    groups: dict[str, list[Flag]] = {}
    for flag in FLAGS:
        groups.setdefault(flag.group, []).append(flag)
    parts = []
    for group, flags in groups.items():
        rows = [[_spellings(f), f"`{f.env}`" if f.variable else "", _default(f), _flag_help(f)] for f in flags]
        parts.append(f"### {group.capitalize()}\n\n" + _table(["flag", "variable", "default", "meaning"], rows))
    return "\n\n".join(parts)


def _spellings(flag: Flag) -> str:
    value = "" if flag.switch else f" {flag.metavar or '|'.join(flag.choices)}"
    names = [flag.name + value]
    if "-" in flag.name[2:]:
        names.append("--" + flag.dest)
    if flag.short:
        names.append(flag.short)
    return "<br>".join(f"`{name}`" for name in names)


def _default(flag: Flag) -> str:
    return f"`{flag.default}`" if flag.default else "off" if flag.switch else ""


def _flag_help(flag: Flag) -> str:
    meaning, _, difference = flag.help.partition(DIFFERS)
    parts = [meaning.strip(), f"*{DIFFERS.strip()}* {difference.strip()}" if difference else ""]
    return " ".join(part for part in parts if part)


def variable_table() -> str:
    placement = Placement("node", 0, 0, 1)
    spec = NodeSpec(
        rules=JobRules(job_id="job"),
        command=Command(how="script", target="train.py"),
        num_workers=1,
        logs=LogSpec(),
        omp_num_threads="1",
    )
    world = World(1, 0, (placement,), Address("127.0.0.1", 1))
    # The launcher adds the error file, whose place depends on the run.
    found = {*worker_env(spec, world, placement, local_rank=0, agent=Path(), beacon=Path()), "TORCHELASTIC_ERROR_FILE"}
    if found != VARIABLES.keys():
        raise Stale(f"VARIABLES in this script and worker_env() differ in {sorted(found ^ VARIABLES.keys())}")
    return _table(["variable", "meaning"], [[f"`{name}`", text] for name, text in VARIABLES.items()])


def cluster_table() -> str:
    rows = []
    for variable in CLUSTER_VARIABLES.values():
        default = "" if variable.default is None else f"`{variable.default}`" if variable.default else "none"
        theirs = f"`{variable.theirs}`" if variable.theirs else ""
        rows.append([f"`{variable.ours}`", theirs, default, variable.meaning])
    return _table(["ours", "also", "default", "meaning"], rows)


def experiment_table() -> str:
    found = [load_experiment(name, size="small") for name in names()]
    rows = [
        [f"`{e.name}`", e.says, f"needed; without: `{e.instead}`" if e.root else "", e.negative.says] for e in found
    ]
    return _table(["experiment", "what happens", "root", "negative control"], rows)


def expectation_table() -> str:
    return _table(["then", "meaning"], [[f"`{name}`", word.means] for name, word in EXPECTATIONS.items()])


def _shown(field: Field) -> str:
    return f"{field.flag} {f'[{field.metavar}]' if field.is_switch else field.metavar}"


def job_tables() -> str:
    parts = []
    for section in ("", *SECTIONS):
        rows = [
            [f"`{f.name}`", f"`{_shown(f)}`", "" if f.default is None else f"`{f.default}`", f.help]
            for f in FIELDS
            if f.section.split(".")[0] == section
        ]
        title = f"### `{section}`\n\n{SECTIONS[section]}\n\n" if section else "### The job\n\n"
        parts.append(title + _table(["field", "flag", "default", "meaning"], rows))
    return "\n\n".join(parts)


def fault_table() -> str:
    rows = []
    for fault in FAULTS.values():
        parameters = [
            f"`{name}`{f' [{parameter.default}]' if parameter.default else ''}: {parameter.summary}"
            for name, parameter in fault.parameters.items()
        ]
        root = f"needed; without: {fault.without_root}" if fault.needs_root else ""
        rows.append([f"`{fault.name}`", fault.summary, "<br>".join(parameters), root, fault.undo or "none"])
    return _table(["fault", "what it does", "parameters", "root", "undo"], rows)


# --- events ---------------------------------------------------------------------------------------------------


def common_table() -> str:
    entry = next(iter(examples().values()))
    own = {field.name for field in fields(RECORDS[entry["kind"]])}
    found = [name for name in entry if name not in own]
    if found != list(COMMON):
        raise Stale(f"COMMON in this script must have the common fields of an entry: {', '.join(found)}")
    return _table(["field", "meaning"], [[f"`{name}`", text] for name, text in COMMON.items()])


def event_sections() -> str:
    shown = examples()
    parts = []
    for kind, cls in RECORDS.items():
        line = msgspec.json.encode(shown[kind]).decode()
        head = f"### {kind}\n\n{_docstring(cls)} Level: `{cls.level}`."
        parts.append(f"{head}\n\n{_field_table(cls)}\n\n```json\n{line}\n```")
    return "\n\n".join(parts)


def value_sections() -> str:
    return "\n\n".join(f"### {_value_name(cls)}\n\n{_docstring(cls)}\n\n{_field_table(cls)}" for cls in VALUES)


def examples() -> dict[str, dict[str, Any]]:
    """An entry of each kind, with its text as the code would write it today."""
    found: dict[str, dict[str, Any]] = {}
    for line in EXAMPLES.read_text().splitlines():
        entry = msgspec.json.decode(line)
        cls = RECORDS.get(entry["kind"])
        if cls is None:
            raise Stale(f"{EXAMPLES.name} has an entry of kind {entry['kind']!r}, which no job emits")
        own = {name: value for name, value in entry.items() if name not in COMMON}
        if own.keys() != {field.name for field in fields(cls)}:
            raise Stale(f"{EXAMPLES.name}: the {entry['kind']} entry has other fields than {cls.__name__} today")
        record = msgspec.convert(own, cls, str_keys=True)
        wall = datetime.fromisoformat(entry["at"]).astimezone(UTC)
        found[entry["kind"]] = make_entry(record, seq=entry["seq"], elapsed_s=entry["elapsed_s"], wall=wall.timestamp())
    if missing := [kind for kind in RECORDS if kind not in found]:
        raise Stale(f"{EXAMPLES.name} lacks an entry of kind {', '.join(missing)}: take one from a real --events file")
    return {kind: found[kind] for kind in RECORDS}


def example_lines() -> str:
    return "".join(msgspec.json.encode(entry).decode() + "\n" for entry in examples().values())


def _field_table(cls: type[Any]) -> str:
    hints, documented = get_type_hints(cls), _field_docs(cls)
    rows = []
    for field in fields(cls):
        meaning = documented.get(field.name) or MEANINGS.get(f"{cls.__name__}.{field.name}", MEANINGS.get(field.name))
        if meaning is None:
            raise Stale(f"{cls.__name__}.{field.name} needs a docstring, or a line in MEANINGS of this script")
        rows.append([f"`{field.name}`", _json_type(hints[field.name]), meaning])
    return _table(["field", "type", "meaning"], rows)


def _json_type(hint: object) -> str:
    """What a type of the core looks like in JSON."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join("null" if arg is type(None) else _json_type(arg) for arg in args)
    if origin is tuple:
        return f"list of {_json_type(args[0])}"
    if origin is dict:
        return "object"
    if hint in VALUES:
        name = _value_name(hint)
        return f"[{name}](#{name})"
    names: dict[object, str] = {str: "string", int: "number", float: "number", bool: "boolean"}
    return "string" if isinstance(hint, type) and issubclass(hint, str) else names[hint]


def _value_name(cls: object) -> str:
    names = {WorkerFailure: "failure", Placement: "placement", Outcome: "outcome", CheckRow: "row"}
    return names[cls]  # type: ignore[index]


def _docstring(cls: type[Any]) -> str:
    return " ".join((inspect.getdoc(cls) or "").split())


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """The texts under the fields of a dataclass, or under the members of an enumeration."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef), "the source of a class"
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        text = following.value if isinstance(following, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(text, ast.Constant) and isinstance(text.value, str):
            found[target.id] = " ".join(text.value.split())
    return found


def phase_table() -> str:
    documented = _field_docs(NodePhase)
    rows = [[f"`{phase}`", documented.get(phase.name) or MEANINGS[phase.value]] for phase in NodePhase]
    return _table(["phase", "meaning"], rows)


# --- pages ----------------------------------------------------------------------------------------------------

REGIONS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "chaos.md": {"faults": fault_table, "experiments": experiment_table, "expectations": expectation_table},
    "cli.md": {"flags": flag_tables, "variables": variable_table},
    "cluster.md": {"variables": cluster_table},
    "events.md": {"common": common_table, "events": event_sections, "values": value_sections},
    "jobs.md": {"fields": job_tables},
    "http.md": {"phases": phase_table, "rules": lambda: _field_table(JobRules)},
}


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def fill(page: str, regions: Mapping[str, Callable[[], str]]) -> str:
    """`page` with each region replaced by what its function returns."""
    for name, render in regions.items():
        region = re.search(rf"<!-- begin {name} -->\n(.*?)<!-- end {name} -->", page, re.DOTALL)
        if region is None:
            raise Stale(f"a page lacks the region <!-- begin {name} --> ... <!-- end {name} -->")
        page = f"{page[: region.start(1)]}\n{render()}\n\n{page[region.end(1) :]}"
    return page


def generate() -> dict[Path, tuple[str, str]]:
    """Every generated file with its text now and as it should be."""
    pages = {DOCS / name: fill((DOCS / name).read_text(), regions) for name, regions in REGIONS.items()}
    wanted = {EXAMPLES: example_lines(), SCHEMA: json.dumps(job_schema(), indent=2) + "\n", **pages}
    return {path: (path.read_text() if path.exists() else "", text) for path, text in wanted.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 and a diff if a page is stale")
    args = parser.parse_args()
    try:
        files = generate()
    except Stale as error:
        print(f"cli_reference: {error}", file=sys.stderr)
        return 1
    stale = {path: texts for path, texts in files.items() if texts[0] != texts[1]}
    for path, (now, wanted) in stale.items():
        if args.check:
            name = str(path.relative_to(DOCS.parent))
            sys.stdout.writelines(difflib.unified_diff(now.splitlines(True), wanted.splitlines(True), name, "wanted"))
        else:
            path.write_text(wanted)
    if stale and args.check:
        print("cli_reference: stale; run scripts/cli_reference.py with the python of .venv", file=sys.stderr)
    return int(bool(stale) and args.check)


if __name__ == "__main__":
    sys.exit(main())
