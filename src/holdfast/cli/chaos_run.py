"""`holdfast chaos run` and `holdfast chaos soak`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.chaos.experiment import SIZES, Experiment
from holdfast.chaos.experiment_file import load_experiment, names
from holdfast.chaos.play import Played, play
from holdfast.chaos.report import write_report
from holdfast.chaos.soak import SoakPlan, soak_job
from holdfast.errors import SpecError
from holdfast.platforms.local.network import obstacle
from holdfast.spec.flags import Parser

COLUMN = 76
REPORTS, NO_REPORTS = "holdfast-chaos", "none"


def run(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="holdfast chaos run",
        description="Run an experiment: a job is started, things are done to it, and what comes of it is compared with "
        "what is expected.",
        epilog="Exit code: 0 if every experiment passed (with --negative: failed as it must), 1 if not, 2 if something "
        "is not valid.",
    )
    parser.add_argument("name", metavar="NAME", nargs="*", help=f"{', '.join(names())}; or a file that ends in .yaml.")
    parser.add_argument("--all", action="store_true", help="All of them, one after the other.")
    parser.add_argument("--size", choices=SIZES, default="small", help="How large the job is. [small]")
    _add_report(parser)
    parser.add_argument(
        "--negative",
        action="store_true",
        help="Run the negative control instead: without the repair, or with more than it can bear, it must fail.",
    )
    parser.add_argument("--quiet", action="store_true", help="Only the verdicts.")
    args = parser.parse_args(argv)
    wanted = names() if args.all else args.name
    if not wanted:
        raise SpecError("NAME", None, f"name an experiment, or give --all; there is: {', '.join(names())}")
    experiments = [load_experiment(name, size=args.size) for name in wanted]
    obstacles = {experiment.name: _obstacle(experiment) for experiment in experiments}
    for experiment in experiments:
        if (reason := obstacles[experiment.name]) and not args.all:
            instead = f"; instead, run {experiment.instead}" if experiment.instead else ""
            raise SpecError("NAME", experiment.name, reason + instead)
    reports = _reports(args.report)
    _end_in_order()
    played = []
    for experiment in experiments:
        if reason := obstacles[experiment.name]:
            _say(f"{experiment.name}  SKIPPED: {reason}; {experiment.instead} is run instead")
            continue
        played.append(_play(experiment, negative=args.negative, quiet=args.quiet))
        _report(played[-1], reports, size=args.size)
    if len(played) > 1:
        _say("")
        for each in played:
            _say(_verdict(each))
    return 0 if all(each.passed for each in played) else 1


def _obstacle(experiment: Experiment) -> str:
    """Why an experiment cannot be run here; empty if it can."""
    if experiment.root and os.geteuid() != 0:
        return f"it needs root: {experiment.root}"
    network = experiment.given.job.get("platform.network")
    reason = obstacle() if network is not None and network.written == "namespace" else ""
    return f"nodes cannot have networks of their own here: {reason}" if reason else ""


def _add_report(parser: Parser) -> None:
    parser.add_argument(
        "--report",
        metavar="DIR",
        default=REPORTS,
        help="Where all that was seen, the verdict and a page with a plot are written; "
        f"{NO_REPORTS}: nowhere. [{REPORTS}]",
    )


def _reports(text: str) -> Path | None:
    """The directory for reports, made; None if none are wanted."""
    if text == NO_REPORTS:
        return None
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError("--report", text, f"it cannot be made: {error.strerror}; {NO_REPORTS} writes none") from error
    return Path(text)


def _report(played: Played, directory: Path | None, *, size: str) -> None:
    if directory is not None:
        data, page = write_report(played, directory, size=size)
        _say(f"report: {data}, {page}")


def _play(experiment: Experiment, *, negative: bool, quiet: bool) -> Played:
    if not quiet:
        _say(f"{experiment.name}: {experiment.says}")
        if negative:
            _say(f"negative control: {experiment.negative.says}; it must fail")
    played = play(experiment, negative=negative, show=_hush if quiet else _show)
    if not quiet:
        _say("\n" + render_findings(played))
    _say(_verdict(played))
    return played


def render_findings(played: Played) -> str:
    rows = [("EXPECTED", "OBSERVED", "")]
    rows += [(finding.expected, finding.observed, "" if finding.met else "NOT MET") for finding in played.findings]
    widths = [min(COLUMN, max(len(row[column]) for row in rows)) for column in range(2)]
    return "".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() + "\n" for a, b, c in rows)


def _verdict(played: Played) -> str:
    name, took = played.experiment.name, f"in {played.took_s:.0f} s"
    if not played.negative:
        return f"{played.verdict}  {name} {took}"
    fails = ", ".join(played.experiment.negative.fails)
    how = "as it must" if played.passed else f"but not as it must: {fails} must not be met, and nothing be left"
    return f"{played.verdict}  {name}, negative control, {how}, {took}"


def _show(elapsed_s: float, text: str) -> None:
    _say(f"{elapsed_s:8.2f} s  {text}".replace("\n", "\n" + " " * 12))


def _end_in_order() -> None:
    """Whoever ends us has faults taken back and the job ended, as with Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))


def _hush(_elapsed_s: float, _text: str) -> None:
    pass


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def soak(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="holdfast chaos soak",
        description="Strike one job with random faults for a while, and see that nothing is lost. The same seed draws "
        "the same faults.",
        epilog="Exit code: 0 if all held, 1 if not.",
    )
    parser.add_argument("--minutes", type=float, required=True, metavar="M", help="How long.")
    parser.add_argument("--seed", type=int, required=True, metavar="S", help="Which faults, at whom, in what order.")
    parser.add_argument("--every", type=float, default=20.0, metavar="SECONDS", help="From fault to fault. [20]")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="Nodes of the job. [3]")
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="For each recovery. [60]")
    _add_report(parser)
    args = parser.parse_args(argv)
    for flag in ("minutes", "every", "budget"):
        if not 0 < getattr(args, flag) < float("inf"):
            raise SpecError(f"--{flag}", getattr(args, flag), "it must be a number above 0")
    if not 2 <= args.nodes <= 64:
        raise SpecError(
            "--nodes", args.nodes, "it must be from 2 to 64: somebody has to be left to take the state from"
        )
    plan = SoakPlan(60 * args.minutes, args.every, args.seed, args.nodes, args.budget)
    reports = _reports(args.report)
    _end_in_order()
    played, goodput = soak_job(plan, show=_show)
    _say("\n" + render_findings(played))
    _say(f"goodput {goodput:.1%}: time in which steps were made, of the time from the first step to the last")
    _report(played, reports, size="normal")
    _say(_verdict(played))
    return 0 if played.passed else 1
