"""Distributed training that does not stop."""

__version__ = "0.1.0"
