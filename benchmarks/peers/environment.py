"""A virtual environment of its own for each peer, made on demand and used again."""

import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

INSTALL_S = 1800.0
"""For one environment, downloads included; a peer that takes longer is reported as not available."""
CHECK_S = 120.0


class NotAvailable(Exception):
    """A peer cannot be measured on this machine; says why."""


def prepare(folder: Path, requirements: tuple[str, ...], *, module: str) -> Path:
    """An environment at `folder` in which `module` can be imported; returns its folder of commands."""
    # Written last: without it, or with other requirements in it, the environment is not whole.
    whole = folder / "requirements.txt"
    commands = folder / "bin"
    wanted = "\n".join(requirements) + "\n"
    if not whole.exists() or whole.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)], timeout_s=CHECK_S)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
        _run([str(commands / "python"), *install, *requirements], timeout_s=INSTALL_S)
        whole.write_text(wanted)
    _run([str(commands / "python"), "-c", f"import {module}"], timeout_s=CHECK_S)
    return commands


def version_of(package: str, commands: Path) -> str:
    """As installed in the environment that `commands` belongs to."""
    for site in commands.parent.glob("lib/python*/site-packages"):
        for found in distributions(name=package, path=[str(site)]):
            return found.version
    return "unknown"


def _run(command: list[str], *, timeout_s: float) -> None:
    what = " ".join([Path(command[0]).name, *command[1:3]])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"{what}: {error}") from error
    if done.returncode != 0:
        raise NotAvailable(f"{what}: {_reason(done.stdout)}")


def _reason(output: str) -> str:
    """The line that says most: the last error, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["failed without a word"])[-1]
