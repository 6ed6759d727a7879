"""Losing and diverting packets by programs in the kernel: eBPF at an interface's tcx hooks.

A filter is tied to a descriptor: it goes when the descriptor is closed, also by the death of whoever holds it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import socket
import struct

from holdfast.errors import JobError

BPF_PROG_LOAD, BPF_LINK_CREATE = 5, 28
BPF_PROG_TYPE_SCHED_CLS = 3
TCX_INGRESS, TCX_EGRESS = 46, 47
SINCE = (6, 6)
"""The first Linux with such hooks."""
SYS_BPF = {"x86_64": 321, "aarch64": 280}
GET_PRANDOM_U32, REDIRECT = 7, 23
MARK_OFFSET = 8
"""Of a packet's mark in what a program sees of it."""
ATTRIBUTES_BYTES = 128

# https://docs.kernel.org/bpf/standardization/instruction-set.html: code, registers, offset, immediate
CALL, EXIT, MOV, LOAD, LOAD_WIDE, JUMP_IF_LESS, JUMP_IF_EQUAL = 0x85, 0x95, 0xB7, 0x61, 0x18, 0xAD, 0x15
TCX_NEXT, TCX_DROP = -1, 2


def is_possible(release: str, machine: str) -> bool:
    """Whether this kernel, by its release and its kind of processor, takes such programs."""
    numbers = [int(number) for number in re.findall(r"\d+", release)[:2]]
    return tuple(numbers) >= SINCE and machine in SYS_BPF


class Filter:
    """One program at one hook."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lose(interface: str, *, share: float) -> list[Filter]:
    """Lose this share of what comes in and goes out at an interface of the network that this thread is in."""
    return _attach(_losing(share), interface, (TCX_INGRESS, TCX_EGRESS))


def divert(interface: str, *, to: str, mark: int) -> list[Filter]:
    """Have what goes out at an interface go out at another one, unless it carries a mark."""
    return _attach(_diverting(_index(to), mark), interface, (TCX_EGRESS,))


def _attach(program: bytes, interface: str, hooks: tuple[int, ...]) -> list[Filter]:
    index = _index(interface)
    loaded = _load(program)
    try:
        return [Filter(_link(loaded, index, hook)) for hook in hooks]
    finally:
        os.close(loaded)


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise JobError(f"there is no interface {interface}, only {names}") from None


def _diverting(index: int, mark: int) -> bytes:
    return b"".join(
        [
            _instruction(LOAD, registers=0x12, offset=MARK_OFFSET),
            _instruction(JUMP_IF_EQUAL, registers=2, offset=4, immediate=mark),
            _instruction(MOV, registers=1, immediate=index),
            _instruction(MOV, registers=2, immediate=0),
            _instruction(CALL, immediate=REDIRECT),
            _instruction(EXIT),
            _instruction(MOV, immediate=TCX_NEXT),
            _instruction(EXIT),
        ]
    )


def _losing(share: float) -> bytes:
    """Drops a packet if a random number of 32 bits is below the share of them all."""
    bound = round(share * (1 << 32))
    if bound >= 1 << 32:
        return _instruction(MOV, immediate=TCX_DROP) + _instruction(EXIT)
    return b"".join(
        [
            _instruction(CALL, immediate=GET_PRANDOM_U32),
            _instruction(LOAD_WIDE, registers=1, immediate=bound),
            _instruction(0),
            _instruction(JUMP_IF_LESS, registers=0x10, offset=2),
            _instruction(MOV, immediate=TCX_NEXT),
            _instruction(EXIT),
            _instruction(MOV, immediate=TCX_DROP),
            _instruction(EXIT),
        ]
    )


def _instruction(code: int, *, registers: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhI", code, registers, offset, immediate & 0xFFFFFFFF)


def _load(program: bytes) -> int:
    code, licence = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "<IIQQ", BPF_PROG_TYPE_SCHED_CLS, len(program) // 8, ctypes.addressof(code), ctypes.addressof(licence)
    )
    return _bpf(BPF_PROG_LOAD, attributes)


def _link(program: int, index: int, hook: int) -> int:
    return _bpf(BPF_LINK_CREATE, struct.pack("<III", program, index, hook))


def _bpf(command: int, attributes: bytes) -> int:
    number = SYS_BPF.get(platform.machine())
    if number is None:
        raise JobError(f"packets cannot be lost on {platform.machine()}: its system calls are not known here")
    buffer = ctypes.create_string_buffer(attributes, ATTRIBUTES_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(ATTRIBUTES_BYTES))
    if fd < 0:
        code = ctypes.get_errno()
        old = "; Linux 6.6 is needed" if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP) else ""
        raise JobError(f"the kernel refuses a filter: {os.strerror(code)}{old}")
    return fd
