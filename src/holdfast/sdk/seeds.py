"""Random numbers that are derived, never remembered: a dead rank's are known without asking it."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator

import torch


def derive(*parts: int) -> int:
    """A 63-bit seed that depends on every part and on nothing else."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def seed_all(seed: int, *, devices: bool = True) -> None:
    """Seed Python, NumPy where it is loaded, and torch, with those devices that are in use."""
    torch.default_generator.manual_seed(seed)
    if devices and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Random numbers of the host go on afterwards as if nothing had been drawn or seeded in here."""
    numpy = sys.modules.get("numpy")
    ours, pythons = torch.get_rng_state(), random.getstate()
    numpys = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        torch.set_rng_state(ours)
        random.setstate(pythons)
        if numpy:
            numpy.random.set_state(numpys)
