"""The rules by which nodes are replaced."""

from __future__ import annotations

from dataclasses import dataclass

CAUSES = ("killed", "hardware", "software", "out_of_memory", "unknown")
"""Why a node may be gone; each has a budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaunchRules:
    """When a node takes the place of one that is gone."""

    limits: dict[str, int]
    """How many within the window, by the cause of the end."""
    window_s: float
    backoff_s: tuple[float, float]
    quarantine: int
    """Nodes that may fail on one host within the window."""
    memory_factor: float
    memory_step_bytes: int
    memory_cap_bytes: int
