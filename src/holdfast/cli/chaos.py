"""`holdfast chaos`: faults, put into running jobs on purpose."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from holdfast.chaos.experiment import Experiment
from holdfast.chaos.experiment_file import load_experiment, names
from holdfast.chaos.faults import FAULTS, Fault
from holdfast.chaos.injection import find_fault, inject
from holdfast.chaos.jobs import open_job
from holdfast.chaos.targets import SELECTORS, find
from holdfast.cli import chaos_run
from holdfast.errors import SpecError
from holdfast.spec.flags import Parser

USAGE = """\
usage: holdfast chaos COMMAND ...

Put faults into a running job, and see what becomes of it.

commands:
  list    show every fault (what it does, its parameters, and how it is taken back) and every experiment
  inject  put one into a running job, wait, and take it back
  run     run an experiment: a job, what happens to it, and whether it comes out as it must
  soak    strike a job with random faults for a while

'holdfast chaos COMMAND --help' explains a command.
"""
WIDTH = 100
ENDS = (signal.SIGTERM, signal.SIGHUP)


def chaos(argv: Sequence[str]) -> int:
    commands = {"list": list_all, "inject": inject_fault, "run": chaos_run.run, "soak": chaos_run.soak}
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0 if argv else 2
    if argv[0] not in commands:
        raise SpecError("COMMAND", argv[0], f"it must be one of {', '.join(commands)}")
    return commands[argv[0]](argv[1:])


def list_all(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="holdfast chaos list",
        description="Show every fault that can be injected, and every experiment that can be run.",
    )
    parser.add_argument("--json", action="store_true", help="As JSON.")
    args = parser.parse_args(argv)
    experiments = [load_experiment(name, size="small") for name in names()]
    if args.json:
        told = {"faults": list(map(_described, FAULTS.values())), "experiments": list(map(_outlined, experiments))}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        faults = "\n".join(map(_render, FAULTS.values()))
        sys.stdout.write(f"Faults (holdfast chaos inject)\n\n{faults}\n")
        sys.stdout.write("Experiments (holdfast chaos run)\n\n" + "\n".join(map(_sketch, experiments)))
    return 0


def inject_fault(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="holdfast chaos inject",
        description="Put a fault into a running job on this machine, and take it back after a while, or on Ctrl-C.",
    )
    parser.add_argument("fault", metavar="FAULT", help="One of holdfast chaos list.")
    parser.add_argument("--target", metavar="SELECTOR", required=True, help=f"Whom it strikes: {', '.join(SELECTORS)}.")
    parser.add_argument(
        "--job",
        metavar="JOB",
        help="A submitted job's name, id or directory, HOST:PORT of a master, or an events file; not needed if only "
        "one submitted job is running.",
    )
    parser.add_argument(
        "--for", dest="for_s", metavar="S", help="Seconds until it is taken back; till Ctrl-C without it."
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="A parameter of the fault. Can be repeated."
    )
    parser.add_argument("--seed", metavar="N", default="0", help="Decides whom any strikes.")
    args = parser.parse_args(argv)
    fault = find_fault(args.fault)
    parameters = dict(map(_assignment, args.set))
    for_s = None if args.for_s is None else _seconds(args.for_s)
    if not args.seed.isdecimal():
        raise SpecError("--seed", args.seed, "it must be a whole number, 0 or more")
    target = find(open_job(args.job, seed=int(args.seed)), args.target)
    for number in ENDS:
        signal.signal(number, _interrupt)
    try:
        with inject(fault.name, target, parameters=parameters, for_s=for_s) as injection:
            _say(injection.did)
            if fault.undo:
                _say(f"for {for_s:g} s" if for_s is not None else "until Ctrl-C")
                injection.wait()
    except KeyboardInterrupt:
        pass
    if fault.undo:
        _say(f"taken back: {fault.undo}")
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SpecError("--set", text, "it must be NAME=VALUE")
    return name, value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise SpecError("--for", text, "it must be seconds, 0 or more")
    return seconds


def _described(fault: Fault) -> dict[str, object]:
    return {
        "name": fault.name,
        "summary": fault.summary,
        "parameters": {
            name: {"summary": parameter.summary, "default": parameter.default or None}
            for name, parameter in fault.parameters.items()
        },
        "needs_root": fault.needs_root,
        "without_root": fault.without_root or None,
        "undo": fault.undo or None,
    }


def _render(fault: Fault) -> str:
    rows = [("", fault.summary)]
    for name, parameter in fault.parameters.items():
        default = f" [{parameter.default}]" if parameter.default else ""
        rows.append((name, parameter.summary + default))
    if fault.needs_root:
        rows.append(("root", f"needed{_you_are_not()}; without root: {fault.without_root}"))
    rows.append(("undo", fault.undo or "none"))
    return _paragraph(fault.name, rows)


def _outlined(experiment: Experiment) -> dict[str, object]:
    return {
        "name": experiment.name,
        "says": experiment.says,
        "needs_root": bool(experiment.root),
        "without_root": experiment.instead or None,
        "negative": experiment.negative.says,
    }


def _sketch(experiment: Experiment) -> str:
    rows = [("", experiment.says)]
    if experiment.root:
        rows.append(("root", f"needed{_you_are_not()}; without root: {experiment.instead}"))
    rows.append(("negative", f"{experiment.negative.says}; it must fail"))
    return _paragraph(experiment.name, rows)


def _you_are_not() -> str:
    return "" if os.geteuid() == 0 else " (you are not)"


def _paragraph(title: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = [title]
    for name, text in rows:
        head = f"  {name:<10} " if name else "  "
        lines += textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    return "\n".join(lines) + "\n"
