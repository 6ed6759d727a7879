"""Make MNIST-like digits in MNIST's own file format, so that the example needs no network.

The real files can be put in their place: train.py reads both.
"""

import argparse
import struct
from pathlib import Path

import torch
import torch.nn.functional as F

SIDE, CLASSES = 28, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("MNIST_Data"))
    parser.add_argument("--samples", type=int, default=12_800)
    args = parser.parse_args()

    random = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (args.samples,), generator=random)
    coarse = torch.rand(CLASSES, 1, 7, 7, generator=random)
    shapes = F.interpolate(coarse, size=SIDE, mode="bilinear").squeeze(1)
    noise = 0.3 * torch.randn(args.samples, SIDE, SIDE, generator=random)
    pixels = (255 * (shapes[labels] + noise).clamp(0, 1)).to(torch.uint8)

    # An unfinished set must not be taken for a whole one.
    unfinished = args.folder.with_suffix(".unfinished")
    (unfinished / "train").mkdir(parents=True, exist_ok=True)
    write(unfinished / "train" / "train-images-idx3-ubyte", pixels)
    write(unfinished / "train" / "train-labels-idx1-ubyte", labels.to(torch.uint8))
    unfinished.rename(args.folder)


def write(path: Path, values: torch.Tensor) -> None:
    """The IDX format: zero, zero, type, number of dimensions, then each of them, then the bytes."""
    unsigned_byte = 8
    head = struct.pack(f">4B{values.dim()}I", 0, 0, unsigned_byte, values.dim(), *values.shape)
    path.write_bytes(head + values.numpy().tobytes())


if __name__ == "__main__":
    main()
