"""All faults, by name."""

from __future__ import annotations

from holdfast.chaos import clocks, disks, load, network, processes, scripts, slowness
from holdfast.chaos.api import Fault, Parameter

__all__ = ["FAULTS", "Fault", "Parameter"]

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for family in (processes, slowness, load, network, disks, clocks, scripts)
    for fault in family.FAMILY
}
