"""`holdfast`: the entry point of every command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.agent.console import plain_error
from holdfast.cli.cert import cert
from holdfast.cli.explain import explain
from holdfast.cli.incidents import incidents
from holdfast.cli.run import run
from holdfast.errors import HoldfastError
from holdfast.version import __version__

USAGE = """\
usage: holdfast COMMAND ...

Distributed training that does not stop.

commands:
  run        run a script on one or several nodes, with torchrun's flags, and keep it running
  incidents  show every repair of a job: what was seen, decided and done, and how long it took
  explain    show the settings of a cluster that forms itself, and which variable each comes from
  cert       make certificates, so that a job can use TLS

  holdfast run --nproc-per-node 4 train.py
  holdfast run --nnodes 2 --rdzv-endpoint HOST:9601 --nproc-per-node 8 train.py   (on each node)

'holdfast COMMAND --help' explains a command; 'holdfast --version' prints the version.
"""

COMMANDS = {"run": run, "incidents": incidents, "explain": explain, "cert": cert}


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        sys.stdout.write(f"holdfast {__version__}\n")
        return 0
    command = COMMANDS.get(args[0])
    if command is None:
        plain_error(f"unknown command {args[0]!r}; there is: {', '.join(COMMANDS)}. See 'holdfast --help'")
        return 2
    try:
        return command(args[1:])
    except HoldfastError as error:
        plain_error(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
