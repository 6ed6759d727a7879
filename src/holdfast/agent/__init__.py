"""The agent process: one per node. Starts, watches and stops the workers of its node."""
