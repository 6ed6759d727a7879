"""Train a digit classifier in a cluster that forms itself, with checkpoints for the day when every process is lost.

Scheduler and workers run this same file. The scheduler stays in `holdfast.init()`; a worker that is started again
finds its rank by its node id, and its state in its peers.
"""

import argparse
import hashlib
import os
import struct
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast

EPOCHS, BATCH = 10, 32
LOG_EVERY = 20
MEAN, DEVIATION = 0.1307, 0.3081


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(28 * 28, 10)
        self.relu = nn.ReLU()
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.zeros_(self.fc.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.relu(self.fc(self.flatten(images)))


def read(path: Path) -> torch.Tensor:
    """A file of MNIST: four bytes of which the last is the number of dimensions, the dimensions, the values."""
    content = path.read_bytes()
    num_dims = content[3]
    shape = struct.unpack_from(f">{num_dims}I", content, 4)
    return torch.frombuffer(bytearray(content[4 + 4 * num_dims :]), dtype=torch.uint8).reshape(shape)


def create_dataset() -> TensorDataset:
    folder = Path(os.environ["DATA_PATH"])
    images = read(folder / "train-images-idx3-ubyte").float().div(255).sub(MEAN).div(DEVIATION).unsqueeze(1)
    return TensorDataset(images, read(folder / "train-labels-idx1-ubyte").long())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    args = parser.parse_args()

    run = holdfast.init()
    torch.manual_seed(1)
    net = Network()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = run.data(create_dataset(), global_batch=BATCH * run.world_size, seed=1)
    run.protect(net=net, optimizer=optimizer, data=data)
    run.checkpoint(f"./ckpt_of_rank/{run.rank}", every=args.save_every, keep=5)
    network = run.data_parallel(net)

    @run.step
    def train(step: holdfast.Step) -> torch.Tensor:
        images, labels = step.batch()
        optimizer.zero_grad()
        loss = loss_fn(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    print(f"rank {run.rank} of {run.world_size}, local rank {run.local_rank}, is process {os.getpid()}", flush=True)
    for step in run.steps(epochs=EPOCHS):
        loss = train(step)
        if step.number % LOG_EVERY == 0 and loss is not None:
            print(f"epoch: {step.epoch}, step: {step.number}, loss is {loss.item():.6f}", flush=True)
    print(f"weights {fingerprint(net)}", flush=True)


def fingerprint(model: nn.Module) -> str:
    """Equal for two models only if every bit of their weights is equal."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
