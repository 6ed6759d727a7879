"""One rank's state of one step in one file, which is either whole or known not to be.

Layout: a mark with the version, the length of the header (8 bytes, big endian), the header, a checksum of all this, the
memory of one tensor after the other, and a checksum of everything but the checksums. A file gets its name when all of
it is on the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from holdfast.sdk import tree
from holdfast.sdk.reducer import as_bytes

MARK = b"holdfast checkpoint 1\n"
LENGTH = struct.Struct("!Q")
DIGEST_BYTES = 32
BLOCK_BYTES = 1 << 20
UNFINISHED = "unfinished"
"""One name for all that a writer writes: what it leaves if it is killed is overwritten by the next."""

HOST = torch.device("cpu")


class Damaged(Exception):
    """A file that is not what was written; says in what way."""


class Header(msgspec.Struct, frozen=True):
    step: int
    """How many steps are committed in this state."""
    num_ranks: int
    """Of the world that saved it."""
    skeleton: bytes
    shapes: list[tuple[str, list[int]]]


def write(path: Path, state: Any, *, step: int, num_ranks: int, writer: int = 0) -> None:  # noqa: ANN401  any nested state
    """Write the file whole, or raise `OSError` and leave none. Those who write at a time need numbers of their own."""
    skeleton, tensors = tree.pack(state, name="state")
    header = msgspec.msgpack.encode(Header(step, num_ranks, skeleton, tree.shapes(tensors)))
    unfinished = path.with_name(f"{UNFINISHED}_{writer}" if writer else UNFINISHED)
    try:
        with open(unfinished, "wb") as file:
            digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
            for part in (MARK, LENGTH.pack(len(header)), header):
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            # One at a time: a copy on the host of all that is on a device may not fit.
            for memory in (_memory(tensor.to(HOST).contiguous()) for tensor in tensors):
                digest.update(memory)
                file.write(memory)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def peek(path: Path) -> Header:
    """The header of a file, whatever its content is; raises `Damaged` or `OSError`."""
    with _open(path) as source:
        return source.header()


def check(path: Path, *, step: int) -> Header:
    """The header of a whole file that is of this step; raises `Damaged` or `OSError`."""
    with _open(path) as source:
        header = source.header()
        if header.step != step:
            raise Damaged(f"it is of step {header.step}")
        left, block = _payload_bytes(header), memoryview(bytearray(BLOCK_BYTES))
        while left:
            part = block[: min(left, BLOCK_BYTES)]
            source.fill(part)
            left -= len(part)
        source.expect_end()
        return header


def read(path: Path) -> Any:  # noqa: ANN401
    """The state in a whole file, with its tensors on the host; raises `Damaged` or `OSError`."""
    with _open(path) as source:
        header = source.header()
        tensors = [tree.empty(shape, HOST) for shape in header.shapes]
        for tensor in tensors:
            source.fill(_memory(tensor))
        source.expect_end()
        return tree.unpack(header.skeleton, tensors)


def sync(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Source:
    """A file that is read from its beginning; all of it but the checksums goes into a checksum."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def fill(self, memory: memoryview) -> None:
        if self._file.readinto(memory) != len(memory):
            raise Damaged("it is cut off")
        self._digest.update(memory)

    def header(self) -> Header:
        if self._take(len(MARK)) != MARK:
            raise Damaged("it does not begin like a checkpoint of this version")
        (length,) = LENGTH.unpack(self._take(LENGTH.size))
        data = self._take(length)
        self._expect_digest("header")
        header = msgspec.msgpack.decode(data, type=Header)
        if self._file.tell() + _payload_bytes(header) + DIGEST_BYTES > self._size:
            raise Damaged("it is cut off")
        return header

    def expect_end(self) -> None:
        self._expect_digest("content")
        if self._file.read(1):
            raise Damaged("something follows its end")

    def _take(self, size: int) -> bytes:
        if size > self._size:
            raise Damaged("it is cut off")
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def _expect_digest(self, of: str) -> None:
        if self._file.read(DIGEST_BYTES) != self._digest.digest():
            raise Damaged(f"the checksum of its {of} is wrong")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[_Source]:
    with open(path, "rb") as file:
        yield _Source(file)


def _memory(tensor: torch.Tensor) -> memoryview:
    return as_bytes(tensor).numpy().data


def _payload_bytes(header: Header) -> int:
    return sum(tree.empty(shape, torch.device("meta")).nbytes for shape in header.shapes)
