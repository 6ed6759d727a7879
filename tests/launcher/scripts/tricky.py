# ruff: noqa: E402, F401, T201, BLE001  what is loaded already comes first; a check that fails is a result
# Many things that break when a script is not run as `python script.py` runs it; results go to argv[1].
import sys

LOADED_AT_START = sorted(sys.modules)

import atexit
import dataclasses
import inspect
import io
import json
import logging
import multiprocessing
import os
import pickle
import subprocess
import threading
import traceback
import typing
import weakref

import helper

if typing.TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: "float" = 0.5


class Numbers:
    """A dataset; its workers have to find this class in their own __main__."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index * index


def double(point):
    return Point(point.x * 2, point.y * 2)


def answer_in_queue(queue):
    queue.put((double(Point(4)), __name__, os.getpid()))


def through_process(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=answer_in_queue, args=(queue,))
    process.start()
    point, name, pid = queue.get(timeout=30)
    process.join()
    return [point == Point(8, 1.0), name, pid != os.getpid(), process.exitcode]


def check_fork():
    return through_process("fork")


def check_spawn():
    return through_process("spawn")


def check_forkserver():
    return through_process("forkserver")


def check_pool():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return [dataclasses.astuple(point) for point in pool.map(double, [Point(1), Point(2)])]


def check_data_loader():
    from torch.utils.data import DataLoader

    batches = [batch.tolist() for batch in DataLoader(Numbers(), batch_size=4, num_workers=2)]
    lasting = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
    return [batches, [[batch.tolist() for batch in lasting] for _ in range(2)]]


def check_shared_tensors():
    import torch

    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(torch.arange(3))
    return queue.get().tolist()


def check_script_compiler():
    import torch

    return torch.jit.script(scripted)(torch.ones(2)).tolist()


def scripted(value):
    # type: (torch.Tensor) -> torch.Tensor
    return value + 1


def check_backward_and_optimizer():
    import torch

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    (weight**2).sum().backward()
    optimizer.step()
    return weight.tolist()


def check_elastic():
    import torch.distributed as dist

    return [dist.is_torchelastic_launched(), dist.is_available()]


def check_subprocess():
    code = "import sys; print(sys.argv[1:], sys.flags.isolated)"
    done = subprocess.run([sys.executable, "-c", code, "a b"], capture_output=True, text=True, check=False)
    return [done.returncode, done.stdout, done.stderr]


def check_asyncio_subprocess():
    import asyncio

    async def run():
        process = await asyncio.create_subprocess_exec("true")
        return await process.wait()

    return asyncio.run(run())


def check_pickle():
    data = pickle.dumps(Point(1))
    return [pickle.loads(data) == Point(1), b"__main__" in data, Point.__module__]


def check_source():
    return [inspect.getsource(double), os.path.samefile(inspect.getsourcefile(double), __file__)]


def check_traceback():
    try:
        double(None)
    except AttributeError:
        return [line.strip() for line in traceback.format_exc().splitlines()[2::2]]


def check_type_hints():
    return {name: str(hint) for name, hint in typing.get_type_hints(Point).items()}


def check_relative_path():
    with open("beside the cwd.txt") as file:
        return file.read()


def check_sibling():
    return [helper.VALUE, "helper" in LOADED_AT_START, "helper" in sys.modules]


def check_argv():
    return [sys.argv[2:-1], len(sys.argv[-1]), os.path.basename(sys.argv[0])]


def check_stdin():
    return [sys.stdin.readline(), input(), sys.stdin.read()]


def check_replaced_stdout():
    real, sys.stdout = sys.stdout, io.StringIO()
    try:
        print("caught")
        return sys.stdout.getvalue()
    finally:
        sys.stdout = real


def check_logging():
    stream = io.StringIO()
    before = [len(logging.getLogger().handlers), logging.getLogger().level, logging.root.manager.disable]
    logging.basicConfig(stream=stream, format="%(levelname)s %(filename)s %(funcName)s %(message)s", level="INFO")
    logging.getLogger("mine").info("hello")
    return [before, stream.getvalue()]


def check_main_module():
    import __main__

    return [__main__.Point is Point, __name__, sys.modules["__main__"].__dict__ is globals()]


def check_threads():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(threading.main_thread().is_alive()))
    thread.start()
    thread.join()
    return [seen, threading.current_thread() is threading.main_thread()]


def check_finalizers():
    done = []
    thing = Numbers()
    weakref.finalize(thing, done.append, "finalized")
    del thing
    return done


def last_words():
    sys.stdout.write("atexit ran\n")


def outlive_main(main_thread):
    main_thread.join()
    sys.stdout.write("thread ended\n")


if __name__ == "__main__":
    results = {"torch_is_warm": "torch" in LOADED_AT_START}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                results[name.removeprefix("check_")] = check()
            except Exception:  # the boundary to one check: the others are made all the same
                results[name.removeprefix("check_")] = traceback.format_exc()
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
    atexit.register(last_words)
    threading.Thread(target=outlive_main, args=(threading.main_thread(),)).start()
    sys.exit(0)
