"""NVIDIA Resiliency Extension: its launcher, with a heartbeat after every step.

Its in-process restart is made for GPUs: with gloo it cannot free the ranks that wait for a dead one.
"""

from peers.peer import SCRIPTS, Peer

NVRX = Peer(
    name="NVRx",
    package="nvidia-resiliency-ext",
    module="nvidia_resiliency_ext.fault_tolerance",
    command=("ft_launcher",),
    flags=("--ft-enable-nic-monitor=False", "--ft-initial-rank-heartbeat-timeout=60"),
    script=SCRIPTS / "nvrx_train.py",
    # The last: a stopped rank whose monitor is not the first to act gets a SIGTERM only, until that time is over.
    hang_flags=(
        "--ft-rank-heartbeat-timeout=2",
        "--ft-workload-check-interval=0.5",
        "--workers-stop-timeout=2",
    ),
    variables=("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",),
)
