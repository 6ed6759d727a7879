"""Faults, put into running jobs on purpose, and taken back."""
