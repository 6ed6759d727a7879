"""Train a small digit classifier with plain DistributedDataParallel.

Nothing here knows its launcher: `torchrun` and `holdfast run` start it the same way. It survives
a restart because of three habits that any script can have: a checkpoint appears whole or not at
all, a start continues from the newest one, and the data of a step follows from (seed, step, rank)
alone, never from what was read before.
"""

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SIDE, CLASSES, SHIFTS, NOISE = 28, 10, 5, 2.5
TEST_SAMPLES = 1000


def stream(*key: int | str) -> torch.Generator:
    """Random numbers that depend on `key` and on nothing else."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]))


class Digits:
    """An endless MNIST-like data set: ten smooth shapes, each shifted and covered with noise."""

    def __init__(self, seed: int) -> None:
        coarse = torch.randn(CLASSES, 1, 7, 7, generator=stream(seed, "shapes"))
        smooth = F.interpolate(coarse, size=SIDE + SHIFTS - 1, mode="bilinear")
        crops = smooth.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
        self._shifted = crops.reshape(CLASSES, SHIFTS**2, SIDE**2)

    def sample(self, size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(CLASSES, (size,), generator=random)
        shifts = torch.randint(SHIFTS**2, (size,), generator=random)
        noise = NOISE * torch.randn(size, SIDE**2, generator=random)
        return self._shifted[labels, shifts] + noise, labels


class Checkpoints:
    """A folder of `step-N.pt` files, of which the newest two are kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        path = self._folder / f"step-{step:08}.pt"
        unfinished = path.with_suffix(".tmp")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
        # A rename is atomic: whoever dies here leaves a whole checkpoint or none.
        unfinished.replace(path)
        for old in self._found()[:-2]:
            old.unlink()

    def load_newest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Restore in place; returns the step that is done, 0 when there is no checkpoint."""
        found = self._found()
        if not found:
            return 0
        state = torch.load(found[-1], map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return int(found[-1].stem.removeprefix("step-"))

    def _found(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.pt"))


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    digits = Digits(args.seed)
    layers = nn.Linear(SIDE**2, 1024), nn.ReLU(), nn.Linear(1024, 192), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(192, CLASSES)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)

    # Every rank finds the same file: rank 0 cannot write another before all have joined a step.
    checkpoints = Checkpoints(args.checkpoint_dir)
    done = checkpoints.load_newest(model, optimizer)
    if rank == 0:
        print(f"resumed at step {done}" if done else "started at step 0", flush=True)

    network = DistributedDataParallel(model, find_unused_parameters=args.same_bits)
    for step in range(done + 1, args.steps + 1):
        images, labels = digits.sample(args.batch, stream(args.seed, step, rank))
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % args.checkpoint_every == 0 or step == args.steps):
            checkpoints.save(step, model, optimizer)
        if rank == 0 and step % args.log_every == 0:
            print(f"step {step}/{args.steps}  loss {loss.item():.4f}", flush=True)

    accuracy = evaluate(model, *digits.sample(TEST_SAMPLES, stream(args.seed, "test", rank)))
    if rank == 0:
        print(f"accuracy {accuracy:.1%}  weights {fingerprint(model)}", flush=True)


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of right answers over the samples of all ranks."""
    device = next(model.parameters()).device
    right = (model(images.to(device)).argmax(1) == labels.to(device)).float().mean()
    dist.all_reduce(right)
    return float(right) / dist.get_world_size()


def fingerprint(model: nn.Module) -> str:
    """Equal for two models only if every bit of their weights is equal."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--log-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=0)
    # Otherwise DDP regroups its gradient buckets after the first step it takes, so a resumed run
    # sums in another order than an uninterrupted one and differs from it in the last bits.
    parser.add_argument("--same-bits", action="store_true", help="keep DDP's bucket layout")
    args = parser.parse_args()

    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    train(args, device)
    # Not in a `finally`: after a failure it could wait for peers that are gone.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
