"""`python entry.py PARENT network|shared GATE NUM_GROUPS GROUP... COMMAND...`: the way into a node.

Joins the control groups, leaves this machine's network if asked to, tells that it is there, waits until its network
is ready (a word on the descriptor GATE), and becomes the command. It imports nothing of ours, so that it is there at
once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1


def main(parent: int, network: bool, gate: int, groups: list[str], command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # The node must not outlive its submitter, not even one that was killed while we came here.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for group in groups:
        with open(os.path.join(group, "cgroup.procs"), "w") as file:
            file.write("0")
    if network and libc.unshare(CLONE_NEWNET) != 0:
        sys.exit(f"holdfast: no network of its own: {os.strerror(ctypes.get_errno())}")
    os.write(gate, b"here")
    if os.read(gate, 2) != b"go":
        os._exit(1)
    os.close(gate)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"holdfast: {command[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    first = 5 + int(sys.argv[4])
    main(int(sys.argv[1]), sys.argv[2] == "network", int(sys.argv[3]), sys.argv[5:first], sys.argv[first:])
