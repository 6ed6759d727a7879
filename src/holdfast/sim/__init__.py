"""The real cores in a simulated cluster: one seed, one trace."""
