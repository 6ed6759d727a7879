"""The master process: one per job, owns the truth, never runs training code."""
