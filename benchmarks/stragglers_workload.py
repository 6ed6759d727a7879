"""Steps that compute for some milliseconds on every rank, without end."""

import os

import torch

import holdfast

torch.set_num_threads(1)
run = holdfast.init()
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
run.protect(model=model, optimizer=optimizer)
net = run.data_parallel(model)
inputs = torch.ones(256, 512)


@run.step
def train(step: holdfast.Step) -> None:
    optimizer.zero_grad()
    net(inputs).sum().backward()
    optimizer.step()


for step in run.steps(total=10_000_000):
    train(step)
    if step.number == 10 and run.is_main:
        os.write(1, b"training\n")
