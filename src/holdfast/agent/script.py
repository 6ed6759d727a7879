"""How a fork of the warm interpreter becomes `python -u script.py`.

Whatever a script can see should be as if the interpreter had been started for it: argv, `__main__`, import path,
environment, thread counts, random numbers, standard streams, tracebacks, exit codes, and what `ps` shows.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import fcntl
import json
import multiprocessing.process
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn, TextIO

from holdfast.agent.lifeline import FD_FLOOR
from holdfast.observe import beacon
from holdfast.observe.beacon import STACK_SIGNAL
from holdfast.spec.worker import BEACON, WATCH_STEPS

FIXED_TORCH_SEED = 67280421310721
"""What torch starts with where it does not draw a seed for each process; then forks agree as they should."""


@dataclass(frozen=True)
class Role:
    """What one forked interpreter is to become."""

    argv: tuple[str, ...]
    """As `ps` shows it: python, -u, [-m], target, arguments."""
    how: str
    target: str
    args: tuple[str, ...]
    env: dict[str, str]
    error_file: str
    numa_binding: str | None
    local_rank: int


def play(role: Role) -> NoReturn:
    """Run the script and leave as it would: by returning, by `sys.exit`, by an exception or by Ctrl-C."""
    _dress(role)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _run(role)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  the boundary to the user's script
        _leave(error, role)
    sys.exit(0)


def _dress(role: Role) -> None:
    os.environ.clear()
    os.environ.update(role.env)
    set_title(role.argv)
    sys.argv = [role.target, *role.args]
    sys.orig_argv = list(role.argv)
    if not sys.flags.safe_path and role.how == "script":
        sys.path.insert(0, os.path.dirname(os.path.realpath(role.target)))
    elif not sys.flags.safe_path and role.how == "module":
        sys.path.insert(0, os.getcwd())
    for stream in (sys.stdout, sys.stderr):
        _write_whole_lines(stream)
    # Forks share this secret; processes that were started one by one would not.
    multiprocessing.process.current_process().authkey = os.urandom(32)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        if torch.initial_seed() != FIXED_TORCH_SEED:
            torch.default_generator.seed()
        _set_threads(torch, role.env)
        if role.numa_binding is not None:
            _bind_numa(role)
        if role.env.get(WATCH_STEPS):
            _show_steps(role.env[BEACON])
    if role.error_file:
        _report_crashes(role.error_file + ".crash")


def _write_whole_lines(stream: TextIO | None) -> None:
    """Write a line at once: with `-u`, each argument of a `print` is a write, and those of several ranks mix."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(line_buffering=True, write_through=False)


def _run(role: Role) -> None:
    if role.how == "run_path":
        runpy.run_path(role.target, run_name="__main__")
        return
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    # The second name is what processes that multiprocessing spawned call the script; they send objects back by it.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    if role.how == "module":
        sys.argv[0] = "-m"
        runpy._run_module_as_main(role.target, alter_argv=True)  # type: ignore[attr-defined]  # noqa: SLF001
        return
    path = os.path.abspath(role.target)
    main.__dict__.update(
        __file__=path, __cached__=None, __package__=None, __spec__=None, __loader__=SourceFileLoader("__main__", path)
    )
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _leave(error: BaseException, role: Role) -> NoReturn:
    """Show an uncaught exception as the interpreter would, without our frames, and end as it would."""
    trace = _users_part(error.__traceback__)
    error.__traceback__ = trace
    if not isinstance(error, KeyboardInterrupt):
        record_error(error, role.error_file)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        # The interpreter ends itself by SIGINT then; only it can do so after its own clean-up.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt from None
    sys.exit(1)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def record_error(error: BaseException, path: str) -> None:
    """Leave the traceback for the agent, in the format of torch's error files; never touch one that is there."""
    if not path or os.path.exists(path):
        return
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    headline = "".join(traceback.format_exception_only(type(error), error)).strip()
    message = {"message": {"message": headline, "extraInfo": extra}}
    try:
        Path(path).write_text(json.dumps(message))
    except OSError as trouble:
        sys.stderr.write(f"holdfast: {path} could not be written: {trouble}\n")


def _report_crashes(path: str) -> None:
    """Have the Python stack written when native code crashes."""
    try:
        low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, FD_FLOOR)
    os.close(low)
    faulthandler.enable(file=high)
    faulthandler.register(STACK_SIGNAL, file=high, all_threads=False)


def set_title(argv: Sequence[str]) -> None:
    """Write `argv` where the kernel keeps our command line; what does not fit is cut off."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[45]), int(stat[46])
    title = b"".join(os.fsencode(arg) + b"\0" for arg in argv)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title, len(title))


def _set_threads(torch: Any, env: dict[str, str]) -> None:  # noqa: ANN401  torch is imported only if the script does
    """The interpreter was warmed with one thread; give the script what it would have had."""
    asked = env.get("OMP_NUM_THREADS", "").partition(",")[0]
    num_cores = len(os.sched_getaffinity(0))
    wanted = min(int(asked), num_cores) if asked.isdecimal() and int(asked) > 0 else num_cores
    if wanted == 1:
        return
    torch.set_num_threads(wanted)
    for library in _loaded_openblas():
        for symbol in ("openblas_set_num_threads", "scipy_openblas_set_num_threads64_"):
            if function := getattr(library, symbol, None):
                function(wanted)


def _loaded_openblas() -> list[ctypes.CDLL]:
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "openblas" in line}
    return [ctypes.CDLL(path) for path in sorted(paths)]


def _show_steps(path: str) -> None:
    """Let the agent see the steps of every optimizer; the SDK, if the script uses it, shows more and ends this."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    shown = beacon.Beacon(path)

    def note(*_: object) -> None:
        shown.step += 1
        shown.show(beacon.Phase.STEPPING)

    beacon.forget_steps = register_optimizer_step_post_hook(note).remove


def _bind_numa(role: Role) -> None:
    from torch.numa import binding

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(role.numa_binding))
    binding._maybe_apply_numa_binding_to_current_process(  # noqa: SLF001  torchrun's own entry
        gpu_index=role.local_rank, numa_options=options
    )
