"""What both workloads train: the same model, optimizer and samples, with and without the SDK."""

import hashlib
import os
from pathlib import Path

import torch
from records import AttemptWriter, StepWriter
from sizes import LARGE_BATCH, NUM_SAMPLES, SMALL_BATCH
from torch import nn
from torch.utils.data import TensorDataset

INPUTS, CLASSES = 784, 10


def global_batch(*, large: bool) -> int:
    return LARGE_BATCH if large else SMALL_BATCH


def build(*, large: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """0.95 million parameters with SGD and momentum, or 48.8 million with Adam; equal on every rank."""
    torch.manual_seed(0)
    first, second = (6600, 6600) if large else (1024, 144)
    layers = nn.Linear(INPUTS, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(second, CLASSES))
    if large:
        return model, torch.optim.Adam(model.parameters(), lr=1e-4)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def samples() -> TensorDataset:
    """Images, labels, and each sample's own number, which tells afterwards what was trained on."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (NUM_SAMPLES,), generator=random)
    images = torch.randn(NUM_SAMPLES, INPUTS, generator=random) + labels[:, None] / CLASSES
    return TensorDataset(images, labels, torch.arange(NUM_SAMPLES))


class Trace:
    """What a rank leaves for the harness: its pid, the steps it began and finished, its final weights."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._weights = folder / f"weights-{rank}"
        self._attempts = AttemptWriter(folder / f"attempts-{rank}")
        self._steps = StepWriter(folder / f"steps-{rank}")
        write_whole(folder / f"pid-{rank}", str(os.getpid()))

    def began(self, step: int, ids: torch.Tensor) -> None:
        self._attempts.began(step, ids.tolist())

    def finished(self, step: int) -> None:
        self._steps.finished(step)

    def ended(self, model: nn.Module) -> None:
        digest = hashlib.sha256()
        for tensor in model.state_dict().values():
            digest.update(tensor.numpy())
        write_whole(self._weights, digest.hexdigest()[:16])


def write_whole(path: Path, text: str) -> None:
    """The file appears with all of its text, or not at all."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)


class Gate:
    """Waits before every so many steps for a byte, so that two jobs can take turns on one machine."""

    def __init__(self, folder: Path, rank: int, *, every: int) -> None:
        self._every = every
        self._file = os.open(folder / f"gate-{rank}", os.O_RDONLY) if every else -1

    def is_shut(self, step: int) -> bool:
        """Whether the harness is gone; returns once it has let this step pass."""
        return self._every > 0 and (step - 1) % self._every == 0 and not os.read(self._file, 1)
