"""What a warm interpreter may import for a script, and why a script must be started cold instead.

Only packages of the standard library and of site-packages are imported ahead, never the user's own modules: those
may change between restarts. Nothing is imported ahead if the script could notice.
"""

from __future__ import annotations

import ast
import importlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

TORCH = ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.optim")

READ_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "TORCH", "PYTORCH_", "BLIS_")
"""Variables that libraries read when they are imported: a script that sets one itself has to import after that."""


def find_script(how: str, target: str) -> Path | None:
    """The source file a command would run, without importing anything."""
    if how in ("script", "run_path"):
        path = Path(target)
        return path if path.is_file() and path.suffix not in (".pyc", ".zip", ".pyz") else None
    if how != "module":
        return None
    parts = target.split(".")
    for entry in [os.getcwd(), *sys.path]:
        base = Path(entry, *parts)
        for path in (base.with_suffix(".py"), base / "__main__.py"):
            if path.is_file():
                return path
    return None


def imported_names(tree: ast.AST) -> list[str]:
    """Absolute modules that a script imports, in order of appearance."""
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names[node.module] = None
    return list(names)


def is_plain(tree: ast.AST) -> bool:
    """Whether a script itself imports nothing but the standard library: no torch, and nobody who might."""
    if any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(tree)):
        return False
    return {name.partition(".")[0] for name in imported_names(tree)} <= sys.stdlib_module_names


def environment_written(tree: ast.AST) -> str | None:
    """The first variable that the script sets itself and that an import would have read."""
    for node in ast.walk(tree):
        name = _written_variable(node)
        if name is not None and name.startswith(READ_AT_IMPORT):
            return name
    return None


def _written_variable(node: ast.AST) -> str | None:
    """NAME of `os.environ[NAME] = ...`, `os.environ.setdefault(NAME, ...)` or `os.putenv(NAME, ...)`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                return _text(target.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        setter = node.func.attr == "setdefault" and _is_environ(node.func.value)
        if setter or node.func.attr == "putenv":
            return _text(node.args[0])
    return None


def _is_environ(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def third_party(names: Iterable[str]) -> Iterator[str]:
    """Those of `names` whose package lies in site-packages."""
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    homes = [Path(path) for path in sorted(paths)]
    for name in names:
        top = name.partition(".")[0]
        if any((home / top / "__init__.py").is_file() or (home / f"{top}.py").is_file() for home in homes):
            yield name


def hidden_module(directory: Path, loaded: Iterable[str]) -> str | None:
    """A file of the script's directory that `import` would prefer to a module already loaded here."""
    tops = {name.partition(".")[0] for name in loaded} - {"__main__", "holdfast"}
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return None
    for entry in entries:
        top = entry.name.partition(".")[0]
        if top not in tops or top in sys.builtin_module_names:
            continue
        if entry.suffix in (".py", ".so") or (entry / "__init__.py").is_file():
            return entry.name
    return None


def import_ahead(names: Iterable[str]) -> str:
    """Import `names`; the reason why this process may no longer be forked, or an empty string."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001  the script will meet the same error and show it where it belongs
            continue
        if reason := unforkable():
            return f"importing {name} {reason}"
    return ""


def unforkable() -> str:
    """Why a fork of this process would not be a clean interpreter."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "started a thread"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "initialised CUDA"
    return ""


def open_sockets() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if link.startswith("socket:"):
            found.add(link)
    return found
