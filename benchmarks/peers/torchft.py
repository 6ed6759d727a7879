"""torchft: every rank is a replica group of its own; the others train on while one is missing.

The heartbeat timeout is its waiting time after any loss, and 5 s by default. Nothing in torchft replaces a replica
that is stopped, so after a SIGSTOP only the other ranks have a new step. Its jobs are longer, for the newcomer
after a SIGKILL comes late: the others train on meanwhile.
"""

from peers.peer import SCRIPTS, Peer

TORCHFT = Peer(
    name="torchft",
    package="torchft-nightly",
    module="torchft",
    command=("python", str(SCRIPTS / "torchft_launch.py")),
    flags=("--heartbeat-timeout-ms=1000",),
    script=SCRIPTS / "torchft_train.py",
    hang_arguments=("--timeout=2",),
    times_steps=2,
    # By default it logs several lines per rank and step.
    variables=("RUST_LOG=warn",),
)
