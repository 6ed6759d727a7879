"""How to launch another system with the benchmark's workload."""

import os
from dataclasses import dataclass
from pathlib import Path

from harness import WORKLOAD, Launcher

SCRIPTS = Path(__file__).with_name("scripts")
"""What runs in a peer's environment, where nothing of ours but the workload can be imported."""
TORCH = "torch==2.13.0"
"""Equal for all, and the only one: another would be gigabytes more, and another comparison."""


@dataclass(frozen=True)
class Peer:
    """A system that others wrote."""

    name: str
    package: str
    """The one whose version is reported."""
    module: str
    """Has to be importable for the peer to count as installed."""
    command: tuple[str, ...]
    """Understands torchrun's flags; its first word is a command of the peer's environment."""
    flags: tuple[str, ...] = ()
    script: Path = WORKLOAD
    hang_flags: tuple[str, ...] = ()
    """With these and `hang_arguments` it notices a stopped rank as soon as is sensible."""
    hang_arguments: tuple[str, ...] = ()
    times_steps: int = 1
    """How many times longer its jobs have to be than the others'."""
    variables: tuple[str, ...] = ()
    """NAME=VALUE in the environment of its processes."""
    extras: str = ""
    more_packages: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        return (TORCH, "numpy", self.package + self.extras, *self.more_packages)

    def launcher(self, commands: Path) -> Launcher:
        """For the environment whose commands are in this folder."""
        environment = (
            f"PATH={commands}{os.pathsep}{os.environ['PATH']}",
            f"PYTHONPATH={WORKLOAD.parent}",
            # What it leaves behind there goes with the job's folder.
            "TMPDIR={folder}",
            *self.variables,
        )
        first, *others = self.command
        return Launcher(("env", *environment, str(commands / first), *others), self.flags, self.script)
