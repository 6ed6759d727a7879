"""The script that the workers run, and how it is started."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import SpecError
from holdfast.spec.job import Command
from holdfast.spec.settings import Settings


def find_command(given: argparse.Namespace, settings: Settings, env: Mapping[str, str]) -> Command:
    target, args = given.script, tuple(given.script_args)
    python = env.get("PYTHON_EXEC", sys.executable)
    if settings.on("run_path"):
        how = "run_path"
    elif settings.on("no_python") and settings.on("module"):
        raise SpecError("--no-python", "together with --module", "use one of the two")
    else:
        how = "program" if settings.on("no_python") else "module" if settings.on("module") else "script"
    if how in ("script", "run_path"):
        if not os.path.exists(target):
            raise SpecError("SCRIPT", target, "there is no such file")
        _check_syntax(Path(target))
    return Command(how=how, target=target, args=args, python=python)


def _check_syntax(path: Path) -> None:
    """A script that cannot be compiled would fail in every worker: say so once, before anything is started."""
    if not path.is_file() or path.suffix != ".py":
        return
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ScriptError(f"{path}, line {error.lineno}: {error.msg}\n    {(error.text or '').strip()}") from None
    except (OSError, ValueError) as error:
        raise SpecError("SCRIPT", str(path), f"it cannot be read: {error}") from error


class ScriptError(SpecError):
    """The script is there but is not Python."""

    exit_code = 1

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


def find_start_method(settings: Settings, env: Mapping[str, str]) -> tuple[bool, str]:
    if settings.on("no_python") and not settings.on("run_path"):
        return False, ""
    if env.get("PYTHON_EXEC", sys.executable) != sys.executable:
        return False, "PYTHON_EXEC names another interpreter"
    return settings.text("start_method") != "spawn", ""
