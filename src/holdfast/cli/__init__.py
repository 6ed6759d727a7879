"""The command line: arguments to a specification, one call, an exit code."""
