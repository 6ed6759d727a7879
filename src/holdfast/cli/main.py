"""`holdfast`: the entry point of every command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from holdfast.agent.console import plain_error
from holdfast.errors import HoldfastError
from holdfast.version import __version__

Command = Callable[[Sequence[str]], int]

USAGE = """\
usage: holdfast COMMAND ...

Distributed training that does not stop.

commands:
  run        run a script on one or several nodes, with torchrun's flags, and keep it running
  submit     run a job, from a file or flags, on nodes that are made for it and replaced when lost
  status     show how a submitted job is
  nodes      show its nodes, and where they can be found
  logs       show what one of its nodes has written
  scale      change how many nodes it has
  stop       end it
  incidents  show every repair of a job: what was seen, decided and done, and how long it took
  explain    show the settings of a cluster that forms itself, and which variable each comes from
  chaos      put faults into a running job on purpose, and take them back
  cert       make certificates, so that a job can use TLS

  holdfast run --nproc-per-node 4 train.py
  holdfast run --nnodes 2 --rdzv-endpoint HOST:9601 --nproc-per-node 8 train.py   (on each node)
  holdfast submit job.yaml

'holdfast COMMAND --help' explains a command; 'holdfast --version' prints the version.
"""

COMMANDS = {
    "run": "run",
    "submit": "submit",
    "status": "jobs",
    "nodes": "jobs",
    "logs": "logs",
    "scale": "jobs",
    "stop": "jobs",
    "incidents": "incidents",
    "explain": "explain",
    "chaos": "chaos",
    "cert": "cert",
}
"""The module of each command's function; it is imported when it is used, since people wait for `holdfast run`."""


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        sys.stdout.write(f"holdfast {__version__}\n")
        return 0
    if args[0] not in COMMANDS:
        plain_error(f"unknown command {args[0]!r}; there is: {', '.join(COMMANDS)}. See 'holdfast --help'")
        return 2
    command: Command = getattr(import_module(f"holdfast.cli.{COMMANDS[args[0]]}"), args[0])
    try:
        return command(args[1:])
    except HoldfastError as error:
        plain_error(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
