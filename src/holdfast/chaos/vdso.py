"""The code by which processes ask for the time without a system call, and a wall clock that is wrong in it.

The kernel maps this code (the vDSO) into every process, as a copy of its own once it is written to. A detour at the
entry of each function leads to a few instructions in the unused end of the mapping, which ask the kernel and add to its
answer. Clocks other than the wall clock are told as they are. A fork inherits the detour; a process that executes
another program has a new mapping, and the right time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from holdfast.chaos.api import Process
from holdfast.chaos.pids import is_alive, is_stopped, send
from holdfast.errors import JobError

JUMP = b"\xe9"
JUMP_BYTES = 5
ALIGN = 16
STILL_S = 5.0
"""For a process to stand still outside of this code; it is in it for a moment only."""
LOOK_S = 0.001


@dataclass(frozen=True, slots=True)
class Image:
    """The code as the kernel made it: the same in every process, only elsewhere."""

    code: bytes
    entries: dict[str, int]
    """Offset of each function."""


def obstacle() -> str:
    """Why clocks cannot be made to jump here; empty if they can."""
    if platform.machine() != "x86_64":
        return f"it is written for x86_64, and this is {platform.machine()}"
    with contextlib.suppress(FileNotFoundError):
        if os.geteuid() != 0 and Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip() != "0":
            return "only root may trace processes (kernel.yama.ptrace_scope)"
    return ""


@cache
def image() -> Image:
    start, end = _mapping(os.getpid())
    code = ctypes.string_at(start, end - start)
    return Image(code, _functions(code))


def jump(process: Process, seconds: int) -> None:
    """Make the wall clock of a process wrong by so much."""
    whole = image()
    patched = bytearray(whole.code)
    free = -(-len(whole.code.rstrip(b"\0")) // ALIGN) * ALIGN
    for name, shim in _shims(seconds).items():
        if (entry := whole.entries.get(name)) is None:
            continue
        if free + len(shim) > len(patched):
            raise JobError("there is no room for a detour in the vDSO of this kernel")
        patched[free : free + len(shim)] = shim
        patched[entry : entry + JUMP_BYTES] = JUMP + struct.pack("<i", free - entry - JUMP_BYTES)
        free += -(-len(shim) // ALIGN) * ALIGN
    _replace(process, bytes(patched))


def set_right(process: Process) -> None:
    _replace(process, image().code)


def is_wrong(process: Process) -> bool:
    try:
        start, end = _mapping(process.pid)
        with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(start)
            return memory.read(end - start) != image().code
    except (OSError, JobError):
        return False


def _shims(seconds: int) -> dict[str, bytes]:
    """x86-64 code by function; arguments are in rdi and rsi, the answer is in rax."""
    amount = struct.pack("<q", seconds)
    clock_gettime = (
        b"\xb8\xe4\x00\x00\x00\x0f\x05"  # rax = clock_gettime(clock, time)
        b"\x85\xc0\x75\x16"  # done if it failed
        b"\x85\xff\x74\x05"  # the wall clock?
        b"\x83\xff\x05\x75\x0d"  # or its coarse form? else done
        b"\x48\xb9" + amount + b"\x48\x01\x0e"  # time->seconds += amount
        b"\xc3"
    )
    gettimeofday = (
        b"\xb8\x60\x00\x00\x00\x0f\x05"  # rax = gettimeofday(time, zone)
        b"\x48\x85\xff\x74\x0d"  # done if no time is asked for
        b"\x48\xb9" + amount + b"\x48\x01\x0f"  # time->seconds += amount
        b"\xc3"
    )
    since_epoch = (
        b"\xb8\xc9\x00\x00\x00\x57\x31\xff\x0f\x05\x5f"  # rax = time(NULL), rdi is kept
        b"\x48\xb9" + amount + b"\x48\x01\xc8"  # rax += amount
        b"\x48\x85\xff\x74\x03\x48\x89\x07"  # *rdi = rax, if there is one
        b"\xc3"
    )
    return {"clock_gettime": clock_gettime, "gettimeofday": gettimeofday, "time": since_epoch}


def _replace(process: Process, code: bytes) -> None:
    """Write the whole mapping anew, while the process stands still outside of it; one that ends meanwhile is passed."""
    was_stopped = is_stopped(process)
    try:
        start, end = _mapping(process.pid)
        _hold(process, start, end)
        with open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(code)
    except (OSError, JobError) as error:
        if is_alive(process):
            raise JobError(f"the memory of process {process.pid} cannot be written: {error}") from error
    finally:
        if not was_stopped:
            send(process, signal.SIGCONT)


def _hold(process: Process, start: int, end: int) -> None:
    deadline = time.monotonic() + STILL_S
    while True:
        send(process, signal.SIGSTOP)
        while not is_stopped(process) and is_alive(process) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        places = [_place_of(task) for task in Path(f"/proc/{process.pid}/task").iterdir()]
        if all(place is not None and not start <= place < end for place in places):
            return
        if time.monotonic() >= deadline:
            raise JobError(f"process {process.pid} does not stand still")
        send(process, signal.SIGCONT)
        time.sleep(LOOK_S)


def _place_of(task: Path) -> int | None:
    """The address at which a thread stands; None if it runs."""
    words = (task / "syscall").read_text().split()
    return None if words == ["running"] else int(words[-1], 16)


def _mapping(pid: int) -> tuple[int, int]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            start, _, end = line.split()[0].partition("-")
            return int(start, 16), int(end, 16)
    raise JobError(f"process {pid} has no vDSO")


def _functions(code: bytes) -> dict[str, int]:
    """Offset of each exported function, without its prefix, from the ELF tables (64 bits)."""
    sections_at, size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, sections_at + number * size) for number in range(count)]
    found = {}
    for _, kind, _, _, at, length, link, _, _, entry_size in headers:
        if kind != 11:  # SHT_DYNSYM
            continue
        names_at = headers[link][4]
        for offset in range(at, at + length, entry_size):
            name_at, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", code, offset)
            name = code[names_at + name_at : code.index(b"\0", names_at + name_at)].decode()
            if section:
                found[name.removeprefix("__vdso_")] = value
    return found
