"""What `holdfast submit` was asked for: a job file and flags, resolved once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import SpecError
from holdfast.spec.convert.reading import read_draft
from holdfast.spec.job import JobRules
from holdfast.spec.job_fields import BY_PATH, FIELDS, ROLE
from holdfast.spec.job_file import Draft, Entry, RoleDraft
from holdfast.spec.load import load_rules, writable
from holdfast.spec.node_command import NodeCommand, read_command
from holdfast.spec.relaunch import CAUSES, RelaunchRules
from holdfast.spec.settings import Setting
from holdfast.spec.submit_flags import Asked, parse_submit
from holdfast.spec.submit_merge import Merged, merge
from holdfast.spec.variables import DEFAULT, Found


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleSpec:
    """A group of nodes that trains by itself: how many, and what each is."""

    name: str
    min_nodes: int
    max_nodes: int
    cpu: float | None
    memory_bytes: int | None
    command: NodeCommand
    directory: str | None
    env: dict[str, str]
    rules: JobRules
    run_flags: tuple[str, ...]
    """What every node's `holdfast run` is told, besides its own name, rank and the way to the master."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformSpec:
    name: str
    slots: int | None
    network: str
    limits: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitSpec:
    job_id: str
    roles: tuple[RoleSpec, ...]
    relaunch: RelaunchRules
    platform: PlatformSpec
    shutdown_s: float
    log_dir: str | None
    events_file: str | None
    found: dict[str, Found]
    """Every field by its path, with where its value comes from."""
    notes: tuple[str, ...]
    dry_run: bool
    json: bool

    @property
    def has_several_roles(self) -> bool:
        return len(self.roles) > 1


def load_submit(argv: Sequence[str]) -> SubmitSpec:
    asked = parse_submit(argv)
    draft = Draft({}) if asked.file is None else read_draft(asked.file)
    return _resolve(asked, draft)


def _resolve(asked: Asked, draft: Draft) -> SubmitSpec:
    merged = merge(asked, draft)
    values = _parse(merged.entries)
    job_id = f"{values['name']}-{secrets.token_hex(3)}"
    notes = list(draft.notes)
    roles = []
    for name, role in merged.roles.items():
        run_id = job_id if len(merged.roles) == 1 else f"{job_id}-{name}"
        spec, said = _role(name, role, merged.entries, run_id=run_id)
        roles.append(spec)
        notes += [note for note in said if note not in notes]
    _check_room(merged, roles)
    return SubmitSpec(
        job_id=job_id,
        roles=tuple(roles),
        relaunch=_relaunch(values),
        platform=PlatformSpec(
            name=values["platform.name"],
            slots=values.get("platform.slots"),
            network=values["platform.network"],
            limits=values["platform.limits"],
        ),
        shutdown_s=values["timeouts.shutdown"],
        log_dir=values.get("log_dir"),
        events_file=_events_file(merged.entries.get("events")),
        found=merged.found,
        notes=tuple(notes),
        dry_run=asked.dry_run,
        json=asked.json,
    )


def _role(name: str, role: RoleDraft, job: Mapping[str, Entry], *, run_id: str) -> tuple[RoleSpec, list[str]]:
    """A role, and notes for the person who asked; `job` is what counts for all roles."""
    entries = {**job, **role.entries}
    values = _parse(entries)
    command = entries.get(f"{ROLE}.command")
    if command is None:
        raise SpecError(f"{role.source}.command", None, "it must be given, in the file or after --")
    least, most = values[f"{ROLE}.nodes"]
    run = {field.run: entries[field.path].written for field in FIELDS if field.run and field.path in entries}
    shared = {"--nnodes": f"{least}:{most}", "--rdzv-id": run_id, "--rdzv-conf": _conf(values), "--role": name}
    rules, notes = load_rules(_by_dest({**run, **shared, **_check_flags(values)}), {})
    spec = RoleSpec(
        name=name,
        min_nodes=least,
        max_nodes=most,
        cpu=values.get(f"{ROLE}.cpu"),
        memory_bytes=values.get(f"{ROLE}.memory"),
        command=read_command(
            values[f"{ROLE}.command"], source=command.source, directory=values.get(f"{ROLE}.directory")
        ),
        directory=_directory(entries.get(f"{ROLE}.directory")),
        env=values.get(f"{ROLE}.env", {}),
        rules=rules,
        run_flags=_node_flags(entries, shared),
    )
    return spec, notes


def _parse(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {path: BY_PATH[path].kind.parse(entry.written, entry.source) for path, entry in entries.items()}


def _check_room(merged: Merged, roles: Sequence[RoleSpec]) -> None:
    """Roles of which one has to wait for another to end are a mistake; a single one may wait for more room."""
    slots = merged.entries.get("platform.slots")
    least = sum(role.min_nodes for role in roles)
    if slots is not None and len(roles) > 1 and int(str(slots.written)) < least:
        each = ", ".join(f"{role.name} {role.min_nodes}" for role in roles)
        raise SpecError(
            slots.source, slots.written, f"it must be {least} or more, the least nodes of all roles: {each}"
        )


def _conf(values: Mapping[str, Any]) -> str:
    conf = {
        "join_timeout": values["timeouts.join"],
        "repair_timeout": values["timeouts.repair"],
        "restart_window": values["recover.restart_window"],
        "last_call_timeout": values["timeouts.last_call"],
        "keep_alive_interval": values["timeouts.beat"],
        "keep_alive_max_attempt": values["timeouts.missed_beats"],
    }
    return ",".join(f"{key}={value:g}" for key, value in conf.items())


def _check_flags(values: Mapping[str, Any]) -> dict[str, str]:
    """What only the master has to know; a switch that is on is `1`."""
    switches = {"--network-check": "checks.network", "--exclude-straggler": "checks.exclude_stragglers"}
    return {flag: "1" for flag, path in switches.items() if values[path] == "on"}


def _node_flags(entries: Mapping[str, Entry], shared: Mapping[str, str]) -> tuple[str, ...]:
    """Only what was asked for: a default that is given as a flag may mean more than the default."""
    asked = {f.run: entries[f.path] for f in FIELDS if f.run and f.path in entries}
    given = {flag: entry.written for flag, entry in asked.items() if entry.source != DEFAULT}
    return tuple(f"{flag}={value}" for flag, value in {**given, **shared}.items())


def _by_dest(flags: Mapping[str, Any]) -> dict[str, str]:
    return {flag.removeprefix("--").replace("-", "_"): str(value) for flag, value in flags.items()}


def _relaunch(values: Mapping[str, Any]) -> RelaunchRules:
    return RelaunchRules(
        limits={cause: values[f"relaunch.{cause}"] for cause in CAUSES},
        window_s=values["relaunch.window"],
        backoff_s=values["relaunch.backoff"],
        quarantine=values["relaunch.quarantine"],
        memory_factor=values["relaunch.memory_factor"],
        memory_step_bytes=values["relaunch.memory_step"],
        memory_cap_bytes=values["relaunch.memory_cap"],
    )


def _events_file(entry: Entry | None) -> str | None:
    return None if entry is None else writable(Setting(str(entry.written), entry.source))


def _directory(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    assert isinstance(entry.written, str), "a path is a text"
    if not os.path.isdir(entry.written):
        raise SpecError(entry.source, entry.written, "there is no such directory")
    return os.path.abspath(entry.written)
