"""A script without the SDK that hangs starts again, where the user has set a limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import StartJob

SCRIPT = """
    import os, signal, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        time.sleep(0.1)
        if first and step == 10 and dist.get_rank() == 1:
            {fault}
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("fault", "symptom"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", "stopped at step 10 for more than"),
        ("time.sleep(1000)", "no further step at step 10 for more than"),
    ],
    ids=["stopped", "asleep"],
)
def test_a_hang_is_a_failure_like_any_other(
    run_job: StartJob, script: Callable[..., Path], fault: str, symptom: str
) -> None:
    job = run_job("--nproc-per-node", 2, "--hang-timeout", "4:30", script(SCRIPT.format(fault=fault)))
    assert job.wait(within_s=60) == 0, job.story()
    failed = job.events("worker_failed")[0]
    assert f"hung: {symptom}" in failed["text"]
    assert job.events("job_finished")[0]["restarts"] == 1


def test_without_a_limit_a_script_may_take_its_time(run_job: StartJob, script: Callable[..., Path]) -> None:
    job = run_job("--nproc-per-node", 2, script(SCRIPT.format(fault="time.sleep(8)")))
    assert job.wait(within_s=60) == 0, job.story()
    assert not job.events("worker_failed")
