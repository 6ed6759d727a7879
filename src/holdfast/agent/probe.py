"""`python -m holdfast.agent.probe ID ROUND ADDRESS THREADS LISTENER RESULTS TESTS`: what a node is worth, measured.

First what needs nobody else: a matrix product, a copy in memory, and a connection to this node's own address. Then an
all-reduce with each node it is told of. Results go to a pipe as they come. A process of its own, since whatever hangs
or crashes here must not take the agent along; the agent ends it when its time is up.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NoReturn

import msgspec

from holdfast.agent import requests
from holdfast.core.health.results import ALL_REDUCE, COMPUTE, LOOPBACK, MEMORY, CheckResult, PairResult, Timing
from holdfast.core.health.verdicts import MAD_TO_SIGMA
from holdfast.core.ids import PairTest

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

PAIR_S = 20.0
"""For one test of a group; a partner that has not come, or does not get on, by then is not coming."""
WARM_UPS, REPETITIONS = 3, 30
ENOUGH, ALONE_S = 7, 2.0
"""A slow node need not repeat more often than this, once it has been at it for so long."""
MATRIX_SIZE = {"cpu": 512, "cuda": 4096}
COPIED_BYTES = {"cpu": 32 << 20, "cuda": 128 << 20}
LOOPBACK_BYTES = 8 << 20
REDUCED_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
MAX_TESTS_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Task:
    """What to do, and the descriptors to do it with."""

    request: requests.Probe
    listener: int
    results: int
    tests: int


def run_probe(task: Task) -> NoReturn:
    """Measure, tell, and end."""
    result = CheckResult(task.request.check_id, task.request.round, is_whole=False)
    try:
        result = replace(result, timings=_measure_alone(task.request))
        _tell(task, result)
        tests = msgspec.json.decode(os.read(task.tests, MAX_TESTS_BYTES), type=tuple[PairTest, ...])
        result = _measure_pairs(task, result, tests)
    except Exception as error:  # noqa: BLE001  whatever goes wrong is the result
        result = replace(result, error=_headline(error), is_whole=True)
    _tell(task, result)
    # Not a clean end: a collective that never came to one would hold it up.
    os._exit(0)


def _tell(task: Task, result: CheckResult) -> None:
    os.write(task.results, msgspec.json.encode(result) + b"\n")


def _headline(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}"[:300] if text else type(error).__name__


# --- alone ----------------------------------------------------------------------------------------------------


def _measure_alone(request: requests.Probe) -> dict[str, Timing]:
    import torch

    torch.set_num_threads(request.num_threads)
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())] or [torch.device("cpu")]
    timings: dict[str, Timing] = {}
    for device in devices:
        size = MATRIX_SIZE[device.type]
        matrix = torch.rand(size, size, device=device)
        product = torch.empty_like(matrix)
        source = torch.ones(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        works: dict[str, Callable[[], object]] = {
            COMPUTE: partial(torch.mm, matrix, matrix, out=product),
            MEMORY: partial(target.copy_, source),
        }
        for metric, timing in _time(works, _finisher(device.type), within_s=ALONE_S).items():
            # A node is as fast as its slowest device.
            timings[metric] = max((timing, timings.get(metric, timing)), key=lambda each: each.ms)
    try:
        timings |= _measure_loopback(request.address)
    except OSError as error:
        raise OSError(f"its own address {request.address} cannot be used: {error.strerror or error}") from error
    return timings


def _finisher(device_type: str) -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize if device_type == "cuda" else lambda: None


def _time(
    works: Mapping[str, Callable[[], object]], finish: Callable[[], None], *, within_s: float = math.inf
) -> dict[str, Timing]:
    """The time of one repetition of each, and how it scatters. They take turns: a moment of disturbance hits all."""
    times: dict[str, list[float]] = {name: [] for name in works}
    until = time.perf_counter() + within_s
    for number in range(WARM_UPS + REPETITIONS):
        if number >= WARM_UPS + ENOUGH and time.perf_counter() >= until:
            break
        for name, work in works.items():
            began = time.perf_counter()
            work()
            finish()
            if number >= WARM_UPS:
                times[name].append(1000.0 * (time.perf_counter() - began))
    return {name: _summarise(values) for name, values in times.items()}


def _summarise(times: list[float]) -> Timing:
    middle = median(times)
    return Timing(round(middle, 4), round(MAD_TO_SIGMA * median(abs(each - middle) for each in times), 4))


def _measure_loopback(address: str) -> dict[str, Timing]:
    """Through this node's own address, as the others would reach it."""
    block, room = b"x" * LOOPBACK_BYTES, bytearray(LOOPBACK_BYTES)
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((address, 0), family=family) as server, contextlib.ExitStack() as stack:
        server.settimeout(PAIR_S)
        out = stack.enter_context(socket.create_connection(server.getsockname()[:2], timeout=PAIR_S))
        into = stack.enter_context(server.accept()[0])
        into.settimeout(PAIR_S)

        def transfer() -> None:
            sender = threading.Thread(target=out.sendall, args=(block,), daemon=True)
            sender.start()
            left = memoryview(room)
            while left:
                left = left[into.recv_into(left) :]
            sender.join()

        return _time({LOOPBACK: transfer}, lambda: None, within_s=ALONE_S)


# --- with others ----------------------------------------------------------------------------------------------


def _measure_pairs(task: Task, result: CheckResult, tests: tuple[PairTest, ...]) -> CheckResult:
    began = time.monotonic()
    store = _serve(task, tests)
    done: list[PairResult] = []
    for number, test in enumerate(tests):
        until = began + PAIR_S * (test.slot + 1)
        late = [PairResult(each.peer, None, f"no end within {PAIR_S:g} s") for each in tests[number:]]
        so_far = replace(result, pairs=(*done, *late), is_whole=True)
        with _or_else(until, partial(_tell, task, so_far)):
            try:
                done.append(PairResult(test.peer, _all_reduce(task, test, store, until=until)))
            except Exception as error:  # noqa: BLE001  what goes wrong with one partner is no word on the next
                done.append(PairResult(test.peer, None, _headline(error)))
    return replace(result, pairs=tuple(done), is_whole=True)


@contextlib.contextmanager
def _or_else(until: float, tell: Callable[[], None]) -> Iterator[None]:
    """What hangs in native code cannot be interrupted: tell what is known, and end."""

    def expire() -> None:
        tell()
        os._exit(0)

    timer = threading.Timer(until + 1.0 - time.monotonic(), expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _serve(task: Task, tests: tuple[PairTest, ...]) -> Store | None:
    """The store of the tests that this node leads."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = next((test.store.port for test in tests if test.leads), None)
    if port is None:
        return None
    return TCPStore("localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=task.listener)


def _all_reduce(task: Task, test: PairTest, served: Store | None, *, until: float) -> Timing:
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    left = timedelta(seconds=max(0.1, until - time.monotonic()))
    on_gpus = torch.cuda.is_available() and dist.is_nccl_available() and not test.shares_machine
    store = served
    if store is None or not test.leads:
        store = dist.TCPStore(test.store.host, test.store.port, is_master=False, timeout=left)  # type: ignore[attr-defined]
    # The pair's own corner of the store: nothing of another check, round or partner is seen there.
    corner = f"check-{task.request.check_id}/{task.request.round}/{test.slot}"
    # A group that failed while it was built leaves its number behind, and numbers name the keys in the store.
    distributed_c10d._world.group_count = 0  # noqa: SLF001  torch has no public way
    dist.init_process_group(
        "nccl" if on_gpus else "gloo",
        store=dist.PrefixStore(corner, store),  # type: ignore[attr-defined]
        rank=0 if test.leads else 1,
        world_size=2,
        timeout=left,
    )
    try:
        kind = "cuda" if on_gpus else "cpu"
        data = torch.ones(REDUCED_BYTES[kind] // 4, device=kind)
        return _time({ALL_REDUCE: lambda: dist.all_reduce(data)}, _finisher(kind))[ALL_REDUCE]
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    number, which, address, threads, *fds = sys.argv[1:]
    run_probe(Task(requests.Probe(int(number), int(which), address, int(threads)), *map(int, fds)))
