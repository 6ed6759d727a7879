"""How much the workloads train on; the harness needs it too, and does without torch."""

NUM_SAMPLES = 1024
SMALL_BATCH, LARGE_BATCH = 128, 32
"""Samples of a step over all ranks; an epoch is a whole number of steps."""
