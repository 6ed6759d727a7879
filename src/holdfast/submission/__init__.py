"""The submitter: the process that runs a job on nodes of a platform. It hosts the master, and replaces lost nodes."""
