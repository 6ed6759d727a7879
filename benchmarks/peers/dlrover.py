"""DLRover: its launcher, with a local master and the script's own checkpoints.

Its memory checkpoints save time while saving, not while recovering, when four ranks import torch on a few cores.
Its own detection of hangs needs metrics of GPUs, so a stopped rank is found by the timeout of the group.
"""

from peers.peer import SCRIPTS, Peer

DLROVER = Peer(
    name="DLRover",
    package="dlrover",
    extras="[torch]",
    # Imported by its master and not among its requirements.
    more_packages=("grpcio", "kubernetes", "protobuf"),
    module="dlrover.python.master.local_master",
    command=("python", str(SCRIPTS / "dlrover_launch.py")),
    hang_arguments=("--timeout=10",),
    variables=("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",),
)
