"""A container's command: the launcher in it, its flags as fields of ours, and what it would run.

A line for a shell is taken apart, never run: of its commands, the one that starts torchrun or dlrover-run counts.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import NoReturn

from holdfast.errors import SpecError
from holdfast.spec.convert.picking import Entries, Path, Picker
from holdfast.spec.flags import FLAGS, add_run_flags
from holdfast.spec.job_fields import FIELDS, ROLE

SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash")
LAUNCHERS = ("torchrun", "dlrover-run")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "dlrover.trainer.torch.elastic_run")
NODE_VARIABLES = re.compile(r"\$\{?(?:WORKER_NUM|NODE_NUM|NNODES)\}?")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)

SWITCHES = ("network-check", "comm-perf-test", "exclude-straggler", "auto-config", "auto-tunning", "save-at-breakpoint")
VALUES = ("precheck", "node-unit", "accelerator", "training-port", "membind-policy", "ucp-device-type")
"""dlrover-run's flags that torchrun does not have."""
CONF = {
    "join_timeout": "timeouts.join",
    "pend_timeout": "timeouts.join",
    "timeout": "timeouts.join",
    "repair_timeout": "timeouts.repair",
    "restart_window": "recover.restart_window",
    "last_call_timeout": "timeouts.last_call",
    "lastcall_timeout": "timeouts.last_call",
    "keep_alive_interval": "timeouts.beat",
    "keep_alive_max_attempt": "timeouts.missed_beats",
}
BY_RUN_FLAG = {field.run: field.path for field in FIELDS if field.run}
CHECKS = {field.flag: field.path for field in FIELDS if field.section == "checks"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def convert_command(picker: Picker, container: Path, *, num_nodes: int) -> Entries:
    """The fields that a container's `command` and `args` stand for."""
    path = next((each for each in ((*container, "command"), (*container, "args")) if picker.find(each)), None)
    if path is None:
        raise SpecError(picker.at(container), None, "it must have a command")
    words = list(picker.texts(*container, "command") + picker.texts(*container, "args"))
    line = _shell_line(words)
    if line is None:
        return _convert_one(picker, path, words, num_nodes)
    commands = _split(line, picker.at(path))
    chosen = next((each for each in reversed(commands) if _launcher(each)), None)
    if chosen is None and len(commands) == 1:
        return _convert_one(picker, path, commands[0], num_nodes)
    if chosen is None:
        picker.note(
            f"{picker.at(path)} is run as it is by every worker: no torchrun or dlrover-run is in it, and what it "
            "launches by itself is not this job's to repair"
        )
        return picker.entry(f"{ROLE}.command", ("bash", "-c", line), path)
    for other in commands:
        if other is not chosen:
            picker.note(f"{picker.at(path)}: {shlex.join(other)!r} is not run: only what {_launcher(chosen)} starts is")
    return _convert_one(picker, path, chosen, num_nodes)


def _shell_line(words: Sequence[str]) -> str | None:
    if len(words) >= 3 and words[0] in SHELLS and re.fullmatch(r"-[a-z]*c", words[1]):
        return words[2]
    if len(words) == 1 and len(words[0].split()) > 1:
        return words[0]
    return None


def _split(line: str, source: str) -> list[list[str]]:
    """The commands of a line, without the operators between them."""
    lexer = shlex.shlex(line.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) <= set("();<>|&"):
                commands.append([])
            else:
                commands[-1].append(token)
    except ValueError as error:
        raise SpecError(source, line, f"its quotes do not fit: {error}") from None
    return [command for command in commands if command]


def _launcher(words: Sequence[str]) -> str:
    """The launcher that a command starts; empty if none."""
    rest = [word for index, word in enumerate(words) if not _assigns(words, index)]
    if rest and rest[0].rpartition("/")[2] in LAUNCHERS:
        return rest[0]
    if len(rest) > 2 and rest[0].rpartition("/")[2].startswith("python") and rest[1] == "-m" and rest[2] in MODULES:
        return rest[2]
    return ""


def _assigns(words: Sequence[str], index: int) -> bool:
    return all(ASSIGNMENT.fullmatch(word) for word in words[: index + 1])


def _convert_one(picker: Picker, path: Path, words: list[str], num_nodes: int) -> Entries:
    leading = [word for index, word in enumerate(words) if _assigns(words, index)]
    entries: Entries = {}
    if leading:
        variables = dict(word.split("=", 1) for word in leading)
        entries |= picker.entry(f"{ROLE}.env", variables, path)
        words = words[len(leading) :]
    launcher = _launcher(words)
    if not launcher:
        return entries | picker.entry(f"{ROLE}.command", tuple(words), path)
    flags = words[1:] if launcher == words[0] else words[3:]
    return entries | _convert_flags(picker, path, [NODE_VARIABLES.sub(str(num_nodes), word) for word in flags])


def _convert_flags(picker: Picker, path: Path, words: list[str]) -> Entries:
    parser = _Parser(prog="launcher", add_help=False)
    add_run_flags(parser)
    known = {option for action in parser._actions for option in action.option_strings}  # noqa: SLF001
    for name, is_switch in [*((name, True) for name in SWITCHES), *((name, False) for name in VALUES)]:
        spellings = [each for each in dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")) if each not in known]
        if spellings:
            action = "store_true" if is_switch else "store"
            parser.add_argument(*spellings, dest=name.replace("-", "_"), action=action, default=None)
    try:
        given = vars(parser.parse_args(words))
    except ValueError as error:
        raise SpecError(picker.at(path), shlex.join(words), f"its flags cannot be read: {error}") from None
    script, args = given.pop("script"), given.pop("script_args")
    as_module, as_program = given.pop("module"), given.pop("no_python")
    how = ("python", "-m") if as_module else () if as_program else ("python",)
    command = (*how, script, *args)
    if any("$" in word for word in command):
        picker.note(f"{picker.at(path)}: no shell reads the script's arguments, so $ stays $ in them")
    entries = picker.entry(f"{ROLE}.command", command, path)
    for dest, value in given.items():
        if value is not None:
            entries |= _convert_flag(picker, path, dest, "1" if value is True else str(value))
    return entries


def _convert_flag(picker: Picker, path: Path, dest: str, value: str) -> Entries:
    flag = "--" + dest.replace("_", "-")
    if dest == "nnodes":
        return picker.entry(f"{ROLE}.nodes", value, path)
    if dest == "rdzv_conf":
        return _convert_conf(picker, path, value)
    if flag in CHECKS:
        return picker.entry(CHECKS[flag], "on", path)
    if flag in BY_RUN_FLAG:
        return picker.entry(BY_RUN_FLAG[flag], value, path)
    ours = next((each for each in FLAGS if each.name == flag), None)
    why = ": the submitter sees to it" if ours and ours.group in ("rendezvous", "nodes and workers") else ""
    picker.note(f"{picker.at(path)}: {flag} does nothing here{why}")
    return {}


def _convert_conf(picker: Picker, path: Path, value: str) -> Entries:
    entries: Entries = {}
    for item in filter(None, value.split(",")):
        key, _, number = (part.strip() for part in item.partition("="))
        if key in CONF:
            if CONF[key] in entries and entries[CONF[key]].written != number:
                picker.note(f"{picker.at(path)}: --rdzv-conf {key} counts, and not what stands before it for the same")
            entries |= picker.entry(CONF[key], number, path)
        else:
            picker.note(f"{picker.at(path)}: --rdzv-conf {key} does nothing here")
    return entries
