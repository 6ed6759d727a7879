"""A process in which a thread is inside torch when its script ends."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import atexit, sys, time
from datetime import timedelta
import torch.distributed as dist
from holdfast.wire import threads

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1.0)

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=0.5))

def ask_in_vain():
    try:
        store.get("nothing")
    except dist.DistStoreError:
        print("came back", flush=True)

atexit.register(threads.await_all, within_s=10)
threads.start(ask_in_vain, name="asking")
sys.modules["slow"] = Slow()
"""


def test_it_is_awaited():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, b"came back\n"), ended.stderr
