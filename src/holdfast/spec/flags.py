"""Every flag of `holdfast run`, as data: the parser, `--help` and the reference in the docs come from this table.

A flag can be written with dashes or underscores, and each one that torchrun reads from a `PET_*` variable can be
set by that variable too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

DIFFERS = "Differs from torchrun: "


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """One flag. `default` is shown and used when neither the flag nor its variable is given."""

    name: str
    help: str
    group: str
    default: str = ""
    metavar: str = ""
    short: str = ""
    switch: bool = False
    choices: tuple[str, ...] = ()
    variable: bool = True
    """Whether `PET_<NAME>` sets it."""

    @property
    def dest(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def env(self) -> str:
        return f"PET_{self.dest.upper()}"


NODES = "nodes and workers"
RENDEZVOUS = "rendezvous"
FAILURE = "failure and shutdown"
SCRIPT = "how the script is run"
OUTPUT = "output"

FLAGS: tuple[Flag, ...] = (
    Flag(
        name="--nnodes",
        group=NODES,
        default="1:1",
        metavar="MIN:MAX",
        help="Number of nodes, or the least and the most of them.",
    ),
    Flag(
        name="--nproc-per-node",
        group=NODES,
        default="1",
        metavar="N",
        help="Workers on this node: a number, or auto, cpu, gpu, xpu.",
    ),
    Flag(
        name="--node-rank",
        group=NODES,
        metavar="N",
        help="Rank of this node. " + DIFFERS + "optional; without it the master chooses. Two nodes with one rank "
        "are refused.",
    ),
    Flag(
        name="--node-name",
        group=NODES,
        metavar="NAME",
        variable=False,
        help="What this node is called; no other may be called so. The name of the machine, and a few characters more "
        "where there are several nodes, without it.",
    ),
    Flag(name="--role", group=NODES, default="default", metavar="NAME", help="Name of the workers' role."),
    Flag(
        name="--local-addr",
        group=NODES,
        metavar="HOST",
        help="Address of this node for the other nodes' workers; found by itself otherwise.",
    ),
    Flag(
        name="--numa-binding",
        group=NODES,
        choices=("node", "socket", "exclusive", "core-complex"),
        variable=False,
        help="Bind workers to CPUs near their GPU, as torch does it.",
    ),
    Flag(
        name="--virtual-local-rank",
        group=NODES,
        switch=True,
        help="LOCAL_RANK is 0 for every worker, and each sees one GPU only.",
    ),
    Flag(
        name="--standalone",
        group=RENDEZVOUS,
        switch=True,
        help="A job of this node alone. " + DIFFERS + "not needed: every job of one node is.",
    ),
    Flag(
        name="--rdzv-endpoint",
        group=RENDEZVOUS,
        metavar="HOST:PORT",
        help="Where the nodes meet, the same on each. The node that owns HOST runs the master. "
        "PORT is 9601 if left out, or any free one for a job of one node. "
        + DIFFERS
        + "MASTER_PORT is another, free port.",
    ),
    Flag(
        name="--no-master",
        group=RENDEZVOUS,
        switch=True,
        variable=False,
        help="Never run the master on this node, nor stand for election when it is lost: it is somebody else's at "
        "--rdzv-endpoint, and is waited for.",
    ),
    Flag(
        name="--rdzv-id",
        group=RENDEZVOUS,
        default="none",
        metavar="ID",
        help="Id of the job; a node with another id is refused. Without it MINDX_TASK_ID counts, if set; else "
        "a job of one node gets a random one.",
    ),
    Flag(
        name="--rdzv-conf",
        group=RENDEZVOUS,
        metavar="K=V,...",
        help="join_timeout (600 s), repair_timeout (1800 s), restart_window (3600 s, or off), last_call_timeout (5 s), "
        "keep_alive_interval (1 s), keep_alive_max_attempt (5). "
        + DIFFERS
        + "last_call_timeout is 30 s there; pend_timeout means join_timeout, and so does timeout where neither is given"
        "; other keys do nothing.",
    ),
    Flag(
        name="--rdzv-backend",
        group=RENDEZVOUS,
        default="static",
        metavar="NAME",
        help=DIFFERS + "accepted, but all nodes always meet at the master.",
    ),
    Flag(
        name="--master-addr",
        group=RENDEZVOUS,
        default="127.0.0.1",
        metavar="HOST",
        help="Address of the first node, where --rdzv-endpoint is not given.",
    ),
    Flag(
        name="--master-port",
        group=RENDEZVOUS,
        metavar="PORT",
        help="MASTER_PORT of the workers, served by the first node. " + DIFFERS + "the nodes themselves meet at port "
        "9601 of --master-addr.",
    ),
    Flag(
        name="--token-file",
        group=RENDEZVOUS,
        metavar="FILE",
        variable=False,
        help="File with the job's secret; a node without it is refused. HOLDFAST_TOKEN does the same.",
    ),
    Flag(
        name="--tls-config",
        group=RENDEZVOUS,
        metavar="FILE",
        variable=False,
        help="JSON file that names the certificates of the job; all connections to the master are then encrypted, and "
        "both ends show a certificate. The same on each node. HOLDFAST_TLS_CONFIG does the same.",
    ),
    Flag(
        name="--max-restarts",
        group=FAILURE,
        default="3",
        metavar="N",
        help="Restarts of the workers after failures, within an hour (--rdzv-conf restart_window). "
        + DIFFERS
        + "counted for the whole job and "
        "not for each node; 3 by default, not 0.",
    ),
    Flag(
        name="--recover-strategy",
        group=FAILURE,
        default="retry,recover-in-place,recover,elastic-training,dump",
        metavar="NAMES",
        variable=False,
        help="How faults may be repaired in scripts that use the SDK, in any order: retry, recover-in-place, recover, "
        "elastic-training, dump, exit. The finest that applies is used; exit is always there.",
    ),
    Flag(
        name="--standby",
        group=FAILURE,
        default="0",
        metavar="N",
        variable=False,
        help="Workers on this node that run the script up to its loop and wait there for a rank (SDK only).",
    ),
    Flag(
        name="--hang-timeout",
        group=FAILURE,
        default="5:600",
        metavar="MIN:MAX",
        variable=False,
        help="Seconds after which a rank that does not get on while others wait for it is killed and replaced: ten "
        "times the pace of the steps, within these limits; off to never do so. Where it is given, scripts without the "
        "SDK are watched too: all workers start again if no optimizer makes a step for so long.",
    ),
    Flag(
        name="--network-check",
        group=FAILURE,
        switch=True,
        variable=False,
        help="Check each node before it is used: computing, memory, and all-reduce with other nodes. One that fails is "
        "refused; one that is slow is reported. The same on each node.",
    ),
    Flag(
        name="--exclude-straggler",
        group=FAILURE,
        switch=True,
        variable=False,
        help="Replace slow nodes: those that --network-check finds are refused, and one that holds up the others while "
        "they train makes way for a spare node (SDK only). The same on each node.",
    ),
    Flag(
        name="--shutdown-timeout",
        group=FAILURE,
        metavar="S",
        help="Seconds between the signal to end and SIGKILL: 30 by default (or TORCH_ELASTIC_SHUTDOWN_TIMEOUT). "
        + DIFFERS
        + "5 by default when workers are stopped for a restart.",
    ),
    Flag(
        name="--signals-to-handle",
        group=FAILURE,
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        metavar="NAMES",
        help="Signals that are passed on to the workers and end the job. " + DIFFERS + "SIGHUP is the loss of this "
        "node: its workers are killed at once.",
    ),
    Flag(
        name="--monitor-interval",
        group=FAILURE,
        default="0.1",
        metavar="S",
        help=DIFFERS + "accepted, but does nothing: the end of a worker is noticed at once.",
    ),
    Flag(
        name="--module",
        short="-m",
        group=SCRIPT,
        switch=True,
        help="Run the script as a module, like python -m.",
    ),
    Flag(
        name="--no-python",
        group=SCRIPT,
        switch=True,
        help="Run the script as a program, without python in front.",
    ),
    Flag(
        name="--run-path",
        group=SCRIPT,
        switch=True,
        help="Run the script with runpy.run_path; wants an absolute path.",
    ),
    Flag(
        name="--start-method",
        group=SCRIPT,
        default="warm",
        choices=("warm", "spawn", "fork", "forkserver"),
        help="warm: fork workers from an interpreter that has imported torch already. spawn: start a fresh "
        "interpreter for each. " + DIFFERS + "fork and forkserver mean warm.",
    ),
    Flag(
        name="--log-dir",
        group=OUTPUT,
        metavar="DIR",
        help="Directory for the workers' logs and error files. "
        + DIFFERS
        + "both streams are copied there unless --redirects or --tee says otherwise.",
    ),
    Flag(
        name="--run-dir",
        group=OUTPUT,
        metavar="DIR",
        variable=False,
        help="Directory in which this run makes one for its sockets and its journal, which goes with it; without it, "
        "and without --log-dir, the system's for temporary files.",
    ),
    Flag(
        name="--redirects",
        short="-r",
        group=OUTPUT,
        default="0",
        metavar="STD",
        help="Streams that go to a file only: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, 0:1,1:2.",
    ),
    Flag(
        name="--tee",
        short="-t",
        group=OUTPUT,
        default="0",
        metavar="STD",
        help="Streams that go to a file and to the console; written like --redirects.",
    ),
    Flag(
        name="--local-ranks-filter",
        group=OUTPUT,
        metavar="RANKS",
        help="Show only these local ranks on the console, as in 0,2.",
    ),
    Flag(
        name="--duplicate-stdout-filters",
        group=OUTPUT,
        metavar="TEXTS",
        help="Lines with one of these texts go to filtered_stdout.log too; ',,' stands for a comma.",
    ),
    Flag(
        name="--duplicate-stderr-filters",
        group=OUTPUT,
        metavar="TEXTS",
        help="The same for stderr and filtered_stderr.log.",
    ),
    Flag(
        name="--events",
        group=OUTPUT,
        metavar="FILE",
        variable=False,
        help="Write everything that happens to the job to FILE, as JSON lines.",
    ),
    Flag(
        name="--event-log-handler",
        group=OUTPUT,
        default="null",
        metavar="NAME",
        help=DIFFERS + "accepted, but does nothing: see --events.",
    ),
    Flag(
        name="--logs-specs",
        group=OUTPUT,
        metavar="NAME",
        variable=False,
        help=DIFFERS + "accepted, but does nothing.",
    ),
)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"holdfast: {message}; see '{self.prog} --help'\n")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in FLAGS:
        group = groups.setdefault(flag.group, parser.add_argument_group(flag.group))
        names = [name for name in (flag.short, flag.name) if name]
        if "-" in flag.name[2:]:
            names.append("--" + flag.dest)
        text = flag.help + (f" [{flag.default}]" if flag.default else "")
        text = text.replace("%", "%%")
        if flag.switch:
            group.add_argument(*names, dest=flag.dest, action="store_true", default=None, help=text)
        else:
            metavar = flag.metavar or "|".join(flag.choices)
            group.add_argument(*names, dest=flag.dest, default=None, metavar=metavar, help=text)
    parser.add_argument("script", metavar="SCRIPT", help="The script, module or program that each worker runs.")
    parser.add_argument("script_args", metavar="...", nargs=argparse.REMAINDER, help="Its arguments.")


def run_parser(prog: str = "holdfast run") -> Parser:
    parser = Parser(
        prog=prog,
        usage=f"{prog} [flags] SCRIPT [arguments]",
        description="Run a script on one or several nodes and keep it running. Takes every flag of torchrun.",
        epilog="Flags can be written with underscores, and set by PET_<NAME> variables as for torchrun. "
        "Exit code: 0, that of the worker that failed first, 128+N after signal N, 2 for a wrong command line.",
    )
    add_run_flags(parser)
    return parser


def parse_run(argv: Sequence[str]) -> argparse.Namespace:
    return run_parser().parse_args(argv)
