"""Trains, and tells how many bytes went over each control connection during 500 steps.

Those of the worker itself are counted by the kernel: TCP_INFO for the store, and for the agent's Unix socket, which has
no counter, every call that could send or receive. The agent's connection to its master is seen with `ss`.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast
from holdfast.sdk import channel
from holdfast.wire import worker as wire

FIRST, LAST = 20, 520
BYTES_ACKED = 120
"""Where tcp_info holds the bytes acknowledged and, after them, the bytes received."""

unix_bytes = 0
frame, read = wire.frame, wire._read  # noqa: SLF001


def counted_frame(message: object) -> bytes:
    global unix_bytes
    data = frame(message)
    unix_bytes += len(data)
    return data


def counted_read(connection: socket.socket, size: int) -> bytes | None:
    global unix_bytes
    data = read(connection, size)
    unix_bytes += len(data or b"")
    return data


channel.frame = counted_frame
wire._read = counted_read  # noqa: SLF001


def store_bytes() -> int:
    """Both ways, on every connection of this process to the store."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with connection:
            try:
                peer = connection.getpeername()
                if connection.family in (socket.AF_INET, socket.AF_INET6) and peer[1] == int(os.environ["MASTER_PORT"]):
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += sum(struct.unpack_from("<QQ", info, BYTES_ACKED))
            except OSError:
                continue
    return total


def master_bytes() -> int:
    """Both ways, between the agent, which is above the interpreter that started us, and its master."""
    agent = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    listed = subprocess.run(["ss", "-tinpH"], capture_output=True, text=True, check=True).stdout
    entries = re.split(r"\n(?=\S)", listed)
    mine = [entry for entry in entries if f"pid={agent}," in entry]
    return sum(int(count) for entry in mine for count in re.findall(r"bytes_(?:acked|received):(\d+)", entry))


run = holdfast.init()
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.protect(model=model, optimizer=optimizer)
net = run.data_parallel(model)


@run.step
def train(step: holdfast.Step) -> None:
    optimizer.zero_grad()
    net(torch.ones(4, 16)).sum().backward()
    # 500 of them take longer than two beats on any machine.
    time.sleep(0.005)
    dist.barrier()
    optimizer.step()


before = (0, 0, 0)
began = 0.0
for step in run.steps(total=LAST + 1):
    train(step)
    if step.number == FIRST:
        before, began = (unix_bytes, store_bytes(), master_bytes()), time.monotonic()
    if step.number == LAST:
        after = (unix_bytes, store_bytes(), master_bytes())
        counts = [new - old for old, new in zip(before, after, strict=True)]
        sys.stdout.write(f"control {counts[0]} {counts[1]} {counts[2]} {time.monotonic() - began:.3f}\n")
        sys.stdout.flush()
