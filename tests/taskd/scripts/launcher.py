"""A launcher of its own kind: two workers, whose fates it lends TaskD's agent. The first start of rank 1 fails."""

from __future__ import annotations

import subprocess
import sys

from holdfast.taskd import init_taskd_agent, register_func, start_taskd_agent

NOT_STARTED = 200
SLEEP, FAIL, SUCCEED = "import signal; signal.pause()", "raise SystemExit(3)", ""

processes: list[subprocess.Popen[bytes]] = []
starts = 0


def start_all() -> None:
    global starts
    starts += 1
    codes = (SLEEP, FAIL) if starts == 1 else (SUCCEED, SUCCEED)
    processes[:] = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    sys.stdout.write(f"start {starts}\n")
    sys.stdout.flush()


def kill(pids: list[int]) -> None:
    for process in processes:
        if pids == [-1] or process.pid in pids:
            process.kill()


def monitor(local_ranks: list[int]) -> dict[int, dict[str, int | None]]:
    assert local_ranks == [-1]
    if not processes:
        return {rank: {"pid": -1, "status": NOT_STARTED, "global_rank": rank} for rank in (0, 1)}
    return {rank: {"pid": each.pid, "status": each.poll(), "global_rank": rank} for rank, each in enumerate(processes)}


config = {"Framework": "MindSpore", "UpstreamAddr": "127.0.0.1", "UpstreamPort": sys.argv[1], "ServerRank": 0}
answers = [init_taskd_agent(config)]
for operator, function in {"START_ALL_WORKER": start_all, "KILL_WORKER": kill, "MONITOR": monitor}.items():
    answers.append(register_func(operator, function))
sys.stdout.write(f"answers {[*answers, start_taskd_agent()]}\n")
