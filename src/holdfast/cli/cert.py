"""`holdfast cert`: certificates for the secure channel of a job."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.errors import JobError, SpecError
from holdfast.spec.flags import Parser
from holdfast.spec.tls import CLIENT_PASSWORD, SERVER_PASSWORD, given_password, password_file

HOST = re.compile(r"[A-Za-z0-9.:*_-]+")


def cert(argv: Sequence[str]) -> int:
    parser = Parser(prog="holdfast cert", description="Make certificates for the secure channel of a job (TLS).")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    init = commands.add_parser(
        "init",
        help="Make an authority, certificates and a configuration.",
        description="Make an authority, a certificate for the master and one for the nodes, and the configuration for "
        "'holdfast run --tls-config DIR/tls.json'. The passwords are those in HOLDFAST_TLS_SERVER_PASSWORD and "
        "HOLDFAST_TLS_CLIENT_PASSWORD (or in the files that *_FILE name); else they are made up and written to files.",
    )
    init.add_argument("directory", metavar="DIR", help="Where to; files that are there already are not overwritten.")
    init.add_argument(
        "--hosts",
        default=socket.gethostname(),
        metavar="HOST,...",
        help="Names and addresses by which nodes dial the master, as in --rdzv-endpoint. localhost is always among "
        "them. [this machine's name]",
    )
    args = parser.parse_args(argv)
    return _init(Path(args.directory), hosts=[host.strip() for host in args.hosts.split(",")])


def _init(directory: Path, *, hosts: Sequence[str]) -> int:
    from holdfast.wire.issue import issue

    for host in hosts:
        if not HOST.fullmatch(host):
            raise SpecError("--hosts", host, "it must be names or addresses separated by commas, as in node1,10.0.0.1")
    passwords, made_up = {}, {}
    for role, variable in (("server", SERVER_PASSWORD), ("client", CLIENT_PASSWORD)):
        if known := given_password(variable):
            passwords[role] = known.text
        else:
            passwords[role] = secrets.token_urlsafe(24)
            made_up[password_file(f"{role}.p12").name] = passwords[role].encode() + b"\n"
    _write_new(directory, issue(hosts, passwords=passwords) | made_up)
    sys.stdout.write(f"holdfast run --tls-config {directory / 'tls.json'} ...\n")
    return 0


def _write_new(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files for their owner alone; where one of them exists already, nothing is written."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if found := [name for name in files if (directory / name).exists()]:
            raise JobError(f"{directory} has {', '.join(found)} already, and nothing is overwritten; use another DIR")
        for name, data in files.items():
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
    except OSError as error:
        raise JobError(f"{error.filename or directory} cannot be written: {error.strerror}") from error
