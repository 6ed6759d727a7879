"""Groups of the script's own are made again with every world, in a newcomer too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobs import StartJob

SCRIPT = """
    import os, signal
    from pathlib import Path
    import torch, torch.distributed as dist
    import holdfast

    run = holdfast.init()
    model = torch.nn.Linear(2, 2)
    run.protect(model=model)
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    run.once(lambda: None)
    low = dist.new_group([0, 1], backend="gloo")
    totals = []

    @run.step
    def train(step):
        if step.number == 3 and run.rank == 2 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        mine = odd if run.rank % 2 else even
        total = torch.tensor(float(run.rank + 1))
        dist.all_reduce(total, group=mine)
        assert dist.get_world_size(mine) == 2
        if run.rank < 2:
            dist.broadcast(total, 1, low)
        return float(total)

    for step in run.steps(total=6):
        total = train(step)
    print(f"rank {run.rank} total {total}\\n", end="", flush=True)
"""


def test_groups_asked_for_before_the_loop_outlive_a_fault(run_job: StartJob, script: Callable[..., Path]) -> None:
    path = script(SCRIPT)
    job = run_job("--nproc-per-node", 4, path, cwd=path.parent)
    assert job.wait(within_s=90) == 0, job.story()
    assert [event["verdict"] for event in job.events("incident_closed")] == ["repaired"]
    expected = {"rank 0 total 6.0", "rank 1 total 6.0", "rank 2 total 4.0", "rank 3 total 6.0"}
    assert expected <= set(job.out.splitlines())


def test_gradients_are_averaged_with_zeros_of_those_that_have_none_and_by_what_each_rank_weighs(
    run_job: StartJob, script: Callable[..., Path]
) -> None:
    path = script("""
        import torch
        import holdfast

        run = holdfast.init()
        model = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(3))
        run.protect(model=model)
        net = run.data_parallel(model)

        @run.step
        def train(step):
            model.zero_grad()
            net.module[run.rank](torch.full((1, 1), 8.0)).sum().backward()
            return [None if p.grad is None else float(p.grad) for p in model.parameters()]

        @run.step
        def train_by_tokens(step):
            model.zero_grad()
            step.weigh(1 + 2 * run.rank)
            net.module[0](torch.full((1, 1), 8.0 + 8.0 * run.rank)).sum().backward()
            return float(model[0].weight.grad)

        for step in run.steps(total=3):
            if step.number < 2:
                grads = train(step)
            else:
                weighed = train_by_tokens(step)
        print(f"rank {run.rank} grads {grads} weighed {weighed}\\n", end="", flush=True)
    """)
    job = run_job("--nproc-per-node", 2, path)
    assert job.wait(within_s=90) == 0, job.story()
    expected = {f"rank {rank} grads [4.0, 4.0, None] weighed {(8.0 + 3 * 16.0) / 4}" for rank in (0, 1)}
    assert expected <= set(job.out.splitlines())


def test_a_group_asked_for_in_the_loop_is_refused(run_job: StartJob, script: Callable[..., Path]) -> None:
    path = script("""
        import torch, torch.distributed as dist
        import holdfast

        run = holdfast.init()
        run.protect(model=torch.nn.Linear(2, 2))
        for step in run.steps(total=2):
            dist.new_group([0])
    """)
    job = run_job("--nproc-per-node", 2, "--max-restarts", 0, path)
    assert job.wait(within_s=90) == 1
    assert "new_group(): [0] is not valid; call it before the loop and not in run.once" in job.err
