"""What survives a process: the master's journal."""
