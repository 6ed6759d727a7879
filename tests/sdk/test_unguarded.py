"""A collective that no guarded function covers fails with an error that names its line and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from jobs import StartJob, clean_env

LOOP = """
    import os, signal
    import torch, torch.distributed as dist
    import holdfast

    run = holdfast.init()
    model = torch.nn.Linear(2, 2)
    run.protect(model=model)
    {before}

    @run.step
    def train(step):
        return step.number

    for step in run.steps(total=100):
        train(step)
        {after}
"""


def test_a_collective_in_the_loop_that_loses_a_peer_says_which_line_it_is(
    run_job: StartJob, script: Callable[..., Path]
) -> None:
    after = "os.kill(os.getpid(), signal.SIGKILL) if step.number == 3 and run.rank == 1 else dist.barrier()"
    path = script(LOOP.format(before="", after=after))
    line = path.read_text().splitlines().index(f"    {after}") + 1
    job = run_job("--nproc-per-node", 2, "--max-restarts", 0, path)
    assert job.wait(within_s=90) != 0
    assert f"{path}:{line}: torch.distributed.barrier() outside guarded functions failed; it lost a peer" in job.err
    assert "UnguardedCollective" in job.err


def test_a_collective_before_the_loop_points_to_once(run_job: StartJob, script: Callable[..., Path]) -> None:
    path = script(LOOP.format(before="dist.all_reduce(torch.ones(1))", after="pass"))
    job = run_job("--nproc-per-node", 2, "--max-restarts", 0, path)
    assert job.wait(within_s=90) == 1
    assert (
        "torch.distributed.all_reduce() outside guarded functions failed; there is no group before the loop" in job.err
    )
    assert "run.once(function)" in job.err


def test_a_section_before_the_loop_points_to_once(run_job: StartJob, script: Callable[..., Path]) -> None:
    path = script(
        LOOP.format(before="run.once(run.section()(lambda: None)); run.section()(dist.barrier)()", after="pass")
    )
    command = [sys.executable, path]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=clean_env())
    job = run_job("--nproc-per-node", 2, "--max-restarts", 0, path)
    assert [alone.returncode, job.wait(within_s=90)] == [1, 1]
    for told in (alone.stderr, job.err):
        assert "run.section(): 'barrier' is not valid; before the loop, call it in run.once(function)" in told


def test_what_is_done_once_is_not_done_again_by_a_newcomer(run_job: StartJob, script: Callable[..., Path]) -> None:
    path = script("""
        import os, signal, sys
        from pathlib import Path
        import torch, torch.distributed as dist
        import holdfast

        run = holdfast.init()
        model = torch.nn.Linear(2, 2)
        run.protect(model=model)

        def add():
            with open("calls", "a") as calls:
                calls.write("x")
            total = torch.tensor(float(run.rank + 1))
            dist.all_reduce(total)
            return {"total": total}

        total = run.once(add)["total"]

        @run.step
        def train(step):
            if step.number == 3 and run.rank == 1 and not Path("killed").exists():
                Path("killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)

        for step in run.steps(total=10):
            train(step)
        print(f"rank {run.rank} total {float(total)}\\n", end="", flush=True)
    """)
    job = run_job("--nproc-per-node", 2, path, cwd=path.parent)
    assert job.wait(within_s=90) == 0, job.story()
    assert (path.parent / "calls").read_text() == "xx"
    assert {"rank 0 total 3.0", "rank 1 total 3.0"} <= set(job.out.splitlines())
