"""Every field of a job, as data: the reader of job files, the flags of `holdfast submit`, the published schema and
the reference in the docs come from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.spec.flags import FLAGS
from holdfast.spec.job_kinds import (
    BYTES,
    COMMAND,
    COUNT_OR_DEVICES,
    CPU,
    FACTOR,
    HANG,
    NAME,
    NODES,
    ON_OFF,
    PATH,
    SECONDS,
    SPAN,
    STRATEGIES,
    VARIABLES,
    WINDOW,
    Kind,
    choice,
    whole,
)

ROLE = "roles.*"
"""The section of a role; the star stands for its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One field. `default` is None where there is none: then it is off, or has to be given."""

    section: str
    name: str
    flag: str
    kind: Kind
    help: str
    metavar: str = ""
    default: str | None = None
    required: bool = False
    run: str = ""
    """The flag of `holdfast run` that tells each node, where its value is passed on as it is."""

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def dest(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Whether the flag says it without a value too."""
        return self.kind is ON_OFF


def _usual(flag: str) -> str:
    return next(each.default for each in FLAGS if each.name == flag)


def _budget(cause: str, limit: int, text: str) -> Field:
    return Field(
        section="relaunch",
        name=cause,
        flag=f"--relaunch-{cause.replace('_', '-')}",
        kind=whole(0, 1 << 20),
        metavar="N",
        default=str(limit),
        help=text,
    )


FIELDS: tuple[Field, ...] = (
    Field(
        section="",
        name="name",
        flag="--name",
        kind=NAME,
        metavar="NAME",
        default="job",
        help="Name of the job; its id is this and a few characters more.",
    ),
    Field(
        section="",
        name="log_dir",
        flag="--log-dir",
        kind=PATH,
        metavar="DIR",
        help="Where the job's directory is made, and stays; without it, the directory goes when the job has ended.",
    ),
    Field(
        section="",
        name="events",
        flag="--events",
        kind=PATH,
        metavar="FILE",
        help="Write everything that happens to the job, its nodes included, to FILE, as JSON lines.",
    ),
    Field(
        section=ROLE,
        name="nodes",
        flag="--nodes",
        kind=NODES,
        metavar="MIN:MAX",
        default="1",
        help="Number of nodes, or the least with which the role runs and the most, which it asks for.",
    ),
    Field(
        section=ROLE,
        name="processes",
        flag="--processes",
        kind=COUNT_OR_DEVICES,
        metavar="N",
        default=_usual("--nproc-per-node"),
        run="--nproc-per-node",
        help="Workers on each node: a number, or auto, cpu, gpu, xpu.",
    ),
    Field(
        section=ROLE,
        name="cpu",
        flag="--cpu",
        kind=CPU,
        metavar="CORES",
        help="Cores that a node may use, as 2, 0.5 or 500m; all there are without it.",
    ),
    Field(
        section=ROLE,
        name="memory",
        flag="--memory",
        kind=BYTES,
        metavar="BYTES",
        help="Memory that a node may use, as 4Gi; one that needs more is started again with more.",
    ),
    Field(
        section=ROLE,
        name="command",
        flag="--command",
        kind=COMMAND,
        metavar="LINE",
        required=True,
        help="What each worker runs: a script (train.py, or python train.py), a module (python -m NAME) or a program, "
        "with arguments. On the command line also as the words after --.",
    ),
    Field(
        section=ROLE,
        name="directory",
        flag="--directory",
        kind=PATH,
        metavar="DIR",
        help="Working directory of every node; without it, each has an empty one of its own.",
    ),
    Field(
        section=ROLE,
        name="standby",
        flag="--standby",
        kind=whole(0, 64),
        metavar="N",
        default=_usual("--standby"),
        run="--standby",
        help="Workers on each node that run the script up to its loop and wait there for a rank (SDK only).",
    ),
    Field(
        section=ROLE,
        name="start_method",
        flag="--start-method",
        kind=choice("warm", "spawn"),
        metavar="HOW",
        default=_usual("--start-method"),
        run="--start-method",
        help="warm: workers are forked from an interpreter that has imported torch already. spawn: each starts afresh.",
    ),
    Field(
        section=ROLE,
        name="env",
        flag="--env",
        kind=VARIABLES,
        metavar="NAME=VALUE",
        help="Variables for the nodes and their workers, besides those of the submitter. The flag can be repeated.",
    ),
    Field(
        section="recover",
        name="strategy",
        flag="--recover-strategy",
        kind=STRATEGIES,
        metavar="NAMES",
        default=_usual("--recover-strategy"),
        run="--recover-strategy",
        help="How faults may be repaired in scripts that use the SDK, in any order: retry, recover-in-place, recover, "
        "elastic-training, dump, exit.",
    ),
    Field(
        section="recover",
        name="max_restarts",
        flag="--max-restarts",
        kind=whole(0, 1 << 31),
        metavar="N",
        default=_usual("--max-restarts"),
        run="--max-restarts",
        help="Restarts of all workers of a role after failures, within the window.",
    ),
    Field(
        section="recover",
        name="restart_window",
        flag="--restart-window",
        kind=WINDOW,
        metavar="S",
        default="3600",
        help="The window: failures before it are forgiven; off: none is, and max_restarts is for as long as it runs.",
    ),
    Field(
        section="checks",
        name="network",
        flag="--network-check",
        kind=ON_OFF,
        metavar="on|off",
        default="off",
        help="Check each node before it is used: computing, memory, and all-reduce with other nodes. One that fails is "
        "replaced; one that is slow is reported.",
    ),
    Field(
        section="checks",
        name="exclude_stragglers",
        flag="--exclude-straggler",
        kind=ON_OFF,
        metavar="on|off",
        default="off",
        help="Replace nodes that the check finds slow, and those that hold up the others while they train (SDK only).",
    ),
    Field(
        section="timeouts",
        name="join",
        flag="--join-timeout",
        kind=SECONDS,
        metavar="S",
        default="600",
        help="How long fewer nodes than MIN are waited for, and a node in the place of a lost one (recover); then the "
        "next strategy is tried, and at last the job ends.",
    ),
    Field(
        section="timeouts",
        name="repair",
        flag="--repair-timeout",
        kind=SECONDS,
        metavar="S",
        default="1800",
        help="How long a repair may take, from the world that it leads to until all its ranks have committed a step; "
        "then the last step is saved, if dump is allowed, and all workers start again.",
    ),
    Field(
        section="timeouts",
        name="last_call",
        flag="--last-call-timeout",
        kind=SECONDS,
        metavar="S",
        default="5",
        help="How long the first world waits for more nodes once MIN are there.",
    ),
    Field(
        section="timeouts",
        name="beat",
        flag="--beat-interval",
        kind=SECONDS,
        metavar="S",
        default="1",
        help="How often a node tells the master that it is there.",
    ),
    Field(
        section="timeouts",
        name="missed_beats",
        flag="--missed-beats",
        kind=whole(2, 1000),
        metavar="N",
        default="5",
        help="After so many beats of silence a node is given up, and replaced.",
    ),
    Field(
        section="timeouts",
        name="shutdown",
        flag="--shutdown-timeout",
        kind=SECONDS,
        metavar="S",
        default="30",
        run="--shutdown-timeout",
        help="How long a node that is asked to leave may take, as to save its state; then it is killed.",
    ),
    Field(
        section="timeouts",
        name="hang",
        flag="--hang-timeout",
        kind=HANG,
        metavar="MIN:MAX",
        run="--hang-timeout",
        help="Limits within which a rank has to get on, or off; 5:600 without it. See the flag of holdfast run.",
    ),
    _budget("killed", 100, "Nodes that may be replaced, within the window, because they were preempted or killed."),
    _budget("hardware", 20, "The same for nodes that were silent, or failed a check."),
    _budget("software", 3, "The same for nodes that ended with an exit code of their own."),
    _budget("out_of_memory", 5, "The same for nodes that needed more memory than they had."),
    _budget("unknown", 3, "The same for nodes of whose end nothing is known."),
    Field(
        section="relaunch",
        name="window",
        flag="--relaunch-window",
        kind=SECONDS,
        metavar="S",
        default="3600",
        help="The window: what happened before is forgiven.",
    ),
    Field(
        section="relaunch",
        name="backoff",
        flag="--relaunch-backoff",
        kind=SPAN,
        metavar="FIRST:MOST",
        default="1:60",
        help="Seconds before a place is filled again, doubled with each time within the window. A node that was "
        "preempted, killed or out of memory is replaced at once the first time.",
    ),
    Field(
        section="relaunch",
        name="quarantine",
        flag="--quarantine",
        kind=whole(1, 1 << 20),
        metavar="N",
        default="3",
        help="Nodes that may fail on one host within the window; then it is not used any more.",
    ),
    Field(
        section="relaunch",
        name="memory_factor",
        flag="--memory-factor",
        kind=FACTOR,
        metavar="X",
        default="2",
        help="A node that was out of memory gets so many times as much...",
    ),
    Field(
        section="relaunch",
        name="memory_step",
        flag="--memory-step",
        kind=BYTES,
        metavar="BYTES",
        default="8Gi",
        help="...but at most so much more at once...",
    ),
    Field(
        section="relaunch",
        name="memory_cap",
        flag="--memory-cap",
        kind=BYTES,
        metavar="BYTES",
        default="64Gi",
        help="...and at most so much in all; one that had it already is not replaced.",
    ),
    Field(
        section="platform",
        name="name",
        flag="--platform",
        kind=choice("local"),
        metavar="NAME",
        default="local",
        help="Who provides the nodes. local: each is an agent on this machine.",
    ),
    Field(
        section="platform",
        name="slots",
        flag="--slots",
        kind=whole(0, 1024),
        metavar="N",
        help="Nodes for which there is room; more stay pending. All that are asked for without it.",
    ),
    Field(
        section="platform",
        name="network",
        flag="--network",
        kind=choice("auto", "namespace", "host"),
        metavar="HOW",
        default="auto",
        help="namespace: each node has an address and an interface of its own, which needs root; host: all share this "
        "machine's; auto: the first where it is possible.",
    ),
    Field(
        section="platform",
        name="limits",
        flag="--limits",
        kind=choice("auto", "cgroup", "watchdog"),
        metavar="HOW",
        default="auto",
        help="Who holds nodes to their cpu and memory. cgroup: the kernel, which needs root; watchdog: a look at their "
        "resident memory, and nobody at their cpu; auto: the first where it is possible.",
    ),
)

BY_PATH = {field.path: field for field in FIELDS}
SECTIONS = {
    "roles": "What runs: roles by their names, each a group of nodes that trains by itself.",
    "recover": "Faults of workers.",
    "checks": "Nodes that are not fit.",
    "timeouts": "In seconds.",
    "relaunch": "Nodes in place of lost ones.",
    "platform": "Where the nodes come from.",
}
