"""Generated histories are the same on every run, so a failure is the same for everybody."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "core",
    deadline=None,
    database=None,
    derandomize=True,
    # How fast the machine is says nothing about the core.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("core")
