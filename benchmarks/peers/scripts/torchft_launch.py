"""A lighthouse, and a torchrun for each replica group of one rank, started with torchrun's own flags."""

import argparse
import os
import subprocess
import sys
from time import monotonic, sleep

from torchft.coordination import LighthouseServer

LEFT_BEHIND_S = 5.0
"""From the end of every other group to the end of the job: a stopped replica would hold it for ever."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--max-restarts", required=True)
    parser.add_argument("--heartbeat-timeout-ms", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def start_group(rank: int, args: argparse.Namespace, lighthouse: str) -> "subprocess.Popen[bytes]":
    torchrun = ["torchrun", "--standalone", "--nproc-per-node=1", f"--max-restarts={args.max_restarts}"]
    variables = {"TORCHFT_LIGHTHOUSE": lighthouse, "REPLICA_GROUP_ID": str(rank)}
    return subprocess.Popen([*torchrun, *args.command], env=os.environ | variables)


def wait_for(groups: "list[subprocess.Popen[bytes]]") -> int:
    """The worst exit code of the groups; 1 if all but one have ended and it does not."""
    alone_since = None
    while living := [group for group in groups if group.poll() is None]:
        if len(living) == 1 < len(groups):
            alone_since = alone_since or monotonic()
            if monotonic() - alone_since > LEFT_BEHIND_S:
                print("one replica group is left and does not end", file=sys.stderr)
                return 1
        sleep(0.1)
    return max(abs(group.returncode) for group in groups)


def main() -> int:
    args = parse_args()
    lighthouse = LighthouseServer(
        bind="0.0.0.0:0", min_replicas=1, heartbeat_timeout_ms=args.heartbeat_timeout_ms, quorum_tick_ms=100
    )
    groups = [start_group(rank, args, lighthouse.address()) for rank in range(args.nproc_per_node)]
    return wait_for(groups)


if __name__ == "__main__":
    sys.exit(main())
