"""A cluster of two on a machine whose name server never answers: says how often it was asked.

It uses an IPv6 address that is not that of the machine itself, and which every worker has to be told.

The argument is a directory. It has to run in namespaces of its own, as root there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

ADDRESS = "fd00::1"
here = Path(sys.argv[1])
files = {"resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", "hosts": "127.0.0.1 localhost\n"}
for name, text in files.items():
    (here / name).write_text(text)
    subprocess.run(["mount", "--bind", here / name, f"/etc/{name}"], check=True)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "-6", "address", "add", f"{ADDRESS}/128", "dev", "lo", "nodad"], check=True)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
server.setblocking(False)


def count_questions() -> int:
    count = 0
    while True:
        try:
            server.recv(512)
        except BlockingIOError:
            return count
        count += 1


(here / "go").touch()
train = [sys.executable, Path(__file__).with_name("train.py"), here]
where = {"MS_SCHED_HOST": ADDRESS, "MS_WORKER_IP": ADDRESS, "MS_SCHED_PORT": "8118"}
common = {**os.environ, **where, "MS_WORKER_NUM": "2"}
roles = [("MS_SCHED", "sched"), ("MS_WORKER", "0"), ("MS_WORKER", "1")]
processes = [
    subprocess.Popen(train, env=common | {"MS_ROLE": role, "MS_NODE_ID": node}, stdout=2) for role, node in roles
]
codes = [process.wait() for process in processes]
sys.stdout.write(f"ended with {codes}\nasked by the cluster: {count_questions()}\n")
with contextlib.suppress(socket.gaierror):
    socket.getnameinfo(("127.0.0.9", 1), socket.NI_NUMERICSERV)
sys.stdout.write(f"asked by others: {count_questions()}\n")
