"""Nodes go and come: the others go on with the same global batch, in the same processes, and no sample is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jobs import Job, StartJob, free_port, kill, until
from torch.utils.data import TensorDataset

from holdfast.agent.rendezvous import Rendezvous
from holdfast.core.ids import Address, Placement, World
from holdfast.sdk.data import Data

SCRIPT = Path(__file__).parent / "scripts" / "counting.py"
CONF = "keep_alive_interval=0.5,keep_alive_max_attempt=20,join_timeout=60,last_call_timeout=1"
ALL_AT_FIRST = CONF.replace("last_call_timeout=1", "last_call_timeout=60")
START_S = 120.0
RENDEZVOUS = """\
Rendezvous complete for workers. Result:
  restart_count=0
  master_addr=192.168.0.71
  master_port=36725
  group_rank=0
  group_world_size=3
  local_ranks=[0, 1]
  role_ranks=[0, 1]
  global_ranks=[0, 1]
  role_world_sizes=[6, 6]
  global_world_sizes=[6, 6]"""


def test_a_place_in_the_world_is_told_in_the_fields_that_people_look_for() -> None:
    places = tuple(Placement(f"node-{n}", group_rank=n, first_rank=2 * n, num_workers=2) for n in range(3))
    world = World(generation=1, restart_count=0, placements=places, store=Address("192.168.0.71", 36725))
    told = Rendezvous(single=False)
    assert told.text(world, places[0]) == RENDEZVOUS
    assert told.text(world, places[0]) is None, "the same place is not told twice"
    last = told.text(world, places[2])
    assert last is not None
    assert "  group_rank=2\n" in last
    assert "  local_ranks=[0, 1]\n  role_ranks=[4, 5]\n  global_ranks=[4, 5]\n" in last
    assert Rendezvous(single=True).text(world, places[0]) is None


def test_where_the_data_goes_on_is_told_once_a_world(capfd: pytest.CaptureFixture[str]) -> None:
    data = Data(TensorDataset(torch.zeros(60000)), global_batch=512)
    for step in (99, 100, 101):
        data.batches(step, rank=0, size=8 if step < 100 else 6)
    before, after = capfd.readouterr().err.splitlines()
    assert before == "Load epoch = 0, completed num = 50688, num_samples = 1164"
    assert after == "Load epoch = 0, completed num = 51200, num_samples = 1467"


@pytest.mark.timeout(400)
def test_the_world_shrinks_and_grows_and_every_sample_counts_once_an_epoch(run_job: StartJob, tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"

    def node() -> Job:
        meeting = ("--nnodes", "2:4", "--rdzv-endpoint", endpoint, "--rdzv-id", "j", "--rdzv-conf", ALL_AT_FIRST)
        return run_job("--nproc-per-node", 1, *meeting, SCRIPT, tmp_path, "endless")

    def train_as(size: int) -> None:
        seen = newest_step(tmp_path)
        until(
            lambda: any(step > seen + 2 for step in steps(tmp_path, size)),
            within_s=START_S,
            what=f"{size} workers train",
            tell=host.story,
        )

    host = node()
    host.wait_for("node_joined", within_s=START_S)
    others = [node() for _ in range(3)]
    train_as(4)
    survivors = {int(rank): pid for event in host.events("workers_started") for rank, pid in event["pids"].items()}
    destroy(others.pop())
    train_as(3)
    destroy(others.pop())
    train_as(2)
    others += [node(), node()]
    train_as(4)
    (tmp_path / "enough").touch()
    assert host.wait(within_s=START_S) == 0, host.story()
    assert [other.wait() for other in others] == [0, 0, 0]
    ends = [end for job in (host, *others) for end in re.findall(r"uses \{\d+\.0: 272\}", job.out)]
    assert len(ends) == 1, host.story()
    assert {event["strategy"] for event in host.events("incident_opened")} == {"elastic-training"}
    assert {event["verdict"] for event in host.events("incident_closed")} == {"repaired"}
    assert host.events("job_finished")[0]["restarts"] == 0
    started = [pid for event in host.events("workers_started") for pid in event["pids"].values()]
    assert len(started) == len(set(started)) == 6, "four at first and two newcomers"
    assert set(survivors.values()) < set(started)
    sizes = re.findall(r"Rendezvous complete for workers\. Result:\n.*?group_world_size=(\d)\n", host.err, re.DOTALL)
    assert [sizes[0], sizes[-1]] == ["4", "4"]
    assert {"2", "3"} < set(sizes)
    for newcomer in others[1:]:
        assert "master_port=" in newcomer.err
        assert re.search(r"Load epoch = \d+, completed num = \d+, num_samples = \d+\n", newcomer.err)


def test_a_world_may_grow_beyond_the_samples_of_a_step(run_job: StartJob, script: Callable[..., Path]) -> None:
    path = script("""
        import time

        import torch
        import holdfast

        run = holdfast.init()
        uses = torch.nn.Embedding(5, 1)
        torch.nn.init.zeros_(uses.weight)
        optimizer = torch.optim.SGD(uses.parameters(), lr=1.0)
        data = run.data(torch.utils.data.TensorDataset(torch.arange(5)), global_batch=4)
        run.protect(uses=uses, optimizer=optimizer, data=data)
        net = run.data_parallel(uses, loss="sum")

        @run.step
        def train(step):
            (ids,) = step.batch()
            optimizer.zero_grad()
            net(ids).sum().backward()
            optimizer.step()

        for step in run.steps(epochs=1 << 20):
            train(step)
            time.sleep(0.01)
            if step.number == 2:
                print("trains", flush=True)
            if run.world_size == 2 and step.number % 2 and step.number > 8:
                run.stop("each sample was used as often")
        print("uses", len(set(uses.weight.flatten().tolist())), "by", run.world_size, flush=True)
    """)
    meeting = ("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "j", "--rdzv-conf", CONF)
    host = run_job("--nproc-per-node", 1, *meeting, path)
    host.wait_for_output("trains", within_s=START_S)
    other = run_job("--nproc-per-node", 1, *meeting, path)
    assert host.wait(within_s=60) == 0, host.story()
    assert other.wait(within_s=60) == 0, other.story()
    assert "uses 1 by 2\n" in host.out
    assert "uses 1 by 2\n" in other.out
    assert "a step of each epoch has 1 samples for 2 ranks" in host.err + other.err


def steps(directory: Path, size: int) -> list[int]:
    return [int(path.name.split()[1]) for path in directory.glob(f"step * of {size}")]


def newest_step(directory: Path) -> int:
    return max((int(path.name.split()[1]) for path in directory.glob("step *")), default=0)


def destroy(job: Job) -> None:
    """All of a node's processes at once."""
    for pid in job.processes():
        kill(pid)
    job.process.wait()
