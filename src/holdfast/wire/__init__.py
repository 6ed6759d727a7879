"""What crosses a socket: typed messages as MessagePack, and nothing else."""
