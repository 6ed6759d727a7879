"""Which nodes are fit, before they are used and while they are."""
