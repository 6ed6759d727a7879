# ruff: noqa: E402, SLF001  the first statement looks at the names that were there before any import
# What a script can see of the process it runs in, written to PROBE_DIR/RANK.json.
NAMES = sorted(globals())

import gc
import json
import multiprocessing
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import warnings


def describe_stream(stream):
    return {
        "type": type(stream).__name__,
        "buffer": type(stream.buffer).__name__,
        "raw": type(getattr(stream.buffer, "raw", None)).__name__,
        "encoding": stream.encoding,
        "errors": stream.errors,
        "newlines": repr(stream.newlines),
        "name": stream.name,
        "mode": stream.mode,
        "isatty": stream.isatty(),
    }


def open_descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue
        if int(name) < 100:
            found[name] = stat.S_IFMT(mode)
    return found


def status_lines(*names):
    with open("/proc/self/status") as status:
        pairs = (line.split(":", 1) for line in status)
        return {name: value.strip() for name, value in pairs if name in names}


def can_bind_store():
    """Whether MASTER_ADDR and MASTER_PORT can be dialled."""
    try:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        with socket.create_connection(address, timeout=10):
            return True
    except OSError:
        return False


main = sys.modules["__main__"]
descriptors = open_descriptors()
with open("/proc/self/cmdline") as file:
    cmdline = file.read().rstrip("\0").split("\0")

record = {
    "environment": dict(os.environ),
    "store_answers": can_bind_store(),
    "pid": os.getpid(),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "cmdline": cmdline,
    "ps": subprocess.check_output(["ps", "-ww", "-o", "args=", "-p", str(os.getpid())], text=True).strip(),
    "cwd": os.getcwd(),
    "file": __file__,
    "name": __name__,
    "package": __package__,
    "spec_name": getattr(__spec__, "name", None),
    "loader": type(__loader__).__name__,
    "doc": __doc__,
    "names": NAMES,
    "main_is_this": main.__dict__ is globals(),
    "path0": sys.path[0],
    "path_tail": [entry for entry in sys.path[1:] if "__editable__" not in entry],
    "flags": repr(sys.flags),
    "executable": sys.executable,
    "warnoptions": sys.warnoptions,
    "dont_write_bytecode": sys.dont_write_bytecode,
    "xoptions": repr(sys._xoptions),
    "stdout": describe_stream(sys.stdout),
    "stderr": describe_stream(sys.stderr),
    "stdin": describe_stream(sys.stdin) if sys.stdin else None,
    "written_through": [sys.stdout.write_through, sys.stderr.write_through],
    "stdio_originals": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "traced": [sys.gettrace() is None, sys.getprofile() is None],
    "is_session_leader": os.getsid(0) == os.getpid(),
    "is_group_leader": os.getpgid(0) == os.getpid(),
    "descriptors": descriptors,
    "umask": oct(os.umask(0o022)),
    "niceness": os.nice(0),
    "affinity": sorted(os.sched_getaffinity(0)),
    "handlers": {
        number.name: str(signal.getsignal(number)) for number in signal.valid_signals() if hasattr(number, "name")
    },
    "kernel_signals": status_lines("SigBlk", "SigIgn"),
    "wakeup_fd": signal.set_wakeup_fd(-1),
    "num_threads": threading.active_count(),
    "thread": threading.current_thread().name,
    "is_main_thread": threading.current_thread() is threading.main_thread(),
    "multiprocessing": [multiprocessing.current_process().name, multiprocessing.parent_process() is None],
    "start_method": multiprocessing.get_start_method(allow_none=True),
    "gc": [gc.isenabled(), gc.get_debug()],
    "recursion_limit": sys.getrecursionlimit(),
    "warning_filters": [[filter[0], filter[2].__name__] for filter in warnings.filters],
    "python_random": random.getrandbits(64),
    "holdfast_in_main": sorted(name for name in main.__dict__ if "holdfast" in name),
}

if os.environ.get("PROBE_TORCH"):
    import numpy
    import torch

    record |= {
        "torch_threads": torch.get_num_threads(),
        "torch_interop_threads": torch.get_num_interop_threads(),
        "torch_seed": torch.initial_seed(),
        "torch_random": torch.rand(1, dtype=torch.float64).item(),
        "numpy_random": float(numpy.random.rand()),
        "numpy_generator": float(numpy.random.default_rng().random()),
    }

where = os.path.join(os.environ["PROBE_DIR"], os.environ.get("RANK", "0") + ".json")
with open(where + ".part", "w") as file:
    json.dump(record, file)
os.rename(where + ".part", where)
