"""Ray Train: a local Ray of its own for each job, with the workload's training as the function of its workers.

The workload keeps its own checkpoints, as under torchrun: Ray registers one only a while after it was reported.
"""

from peers.peer import SCRIPTS, Peer

RAY = Peer(
    name="Ray Train",
    package="ray",
    extras="[train]",
    module="ray.train.torch",
    command=("python", str(SCRIPTS / "ray_launch.py")),
    flags=("--health-check-interval=0.5",),
    hang_flags=("--health-check-timeout=5",),
    variables=("RAY_USAGE_STATS_ENABLED=0", "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S=1"),
)
