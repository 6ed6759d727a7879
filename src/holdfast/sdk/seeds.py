"""Random numbers that are derived, never remembered: a dead rank's are known without asking it."""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def derive(*parts: int) -> int:
    """A 63-bit seed that depends on every part and on nothing else."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def seed_all(seed: int) -> None:
    """Seed torch (with its devices), Python and, where it is loaded, NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)
