"""Nodes on machines of their own, whose faults tell nobody: a loss is known by silence, and repaired all the same."""

from __future__ import annotations

import os
import select
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jobs import StartJob, is_alive, kill, until
from machines import Machine, MakeMachines
from sites import NUM_SAMPLES, SCRIPT, START_S, Site, ends_of

LEASE = ("--rdzv-conf", "keep_alive_interval=0.5,keep_alive_max_attempt=14,join_timeout=90,last_call_timeout=60")
LOSS_S = 60.0

pytestmark = pytest.mark.timeout(400)


class Death(threading.Thread):
    """When a process dies, as the clock on the wall says; None as long as it lives."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.at: float | None = None
        self._fd = os.pidfd_open(pid)
        self.start()

    def run(self) -> None:
        select.select([self._fd], [], [])
        self.at = time.time()
        os.close(self._fd)


def test_spares_take_the_ranks_of_machines_that_are_lost(
    machines: MakeMachines, run_job: StartJob, tmp_path: Path
) -> None:
    first, second, third, *spares = made = machines(5)
    site = Site(made, tmp_path / "site", "--nnodes", 3, *LEASE)
    site.start(first)
    site.host.wait_for("node_joined", within_s=START_S)
    site.start(second, third)
    site.await_training(first, second, third)
    survivor = site.worker(first)
    site.start(*spares)
    site.await_preparation(*spares)

    kill(site.job(second).wait_for_process("agent"))
    site.await_training(first, third, size=3)
    site.start(second)
    site.await_preparation(second)

    expect_fence_before_loss(site, third)
    _, *both = site.await_training(first, size=3)
    third.heal()
    site.await_preparation(third)

    lost, kept = [machine for machine in made if machine not in (first, *both)]
    num_takeovers = len(takeovers(site))
    site.destroy(*both)
    until(lambda: len(takeovers(site)) > num_takeovers, within_s=LOSS_S, what="a spare takes over", tell=site.story)
    site.destroy(lost)
    site.start(both[0])
    site.await_training(first, kept, both[0])
    for machine in (lost, both[1]):
        site.give_up(machine)
    ends = site.finish()

    assert [end.rank for end in ends] == [0, 1, 2]
    assert survivor in [end.pid for end in ends]
    assert site.host.events("job_finished")[0]["restarts"] == 0
    assert len(takeovers(site)) >= 4
    (tmp_path / "calm").mkdir()
    calm = run_job("--nproc-per-node", 3, SCRIPT, tmp_path / "calm", 0, ends[0].uses)
    assert calm.wait(within_s=START_S) == 0, calm.story()
    expected = {(end.uses, end.num_samples, end.weights) for end in ends_of([calm])}
    assert {(end.uses, end.num_samples, end.weights) for end in ends} == expected
    assert {end.num_samples for end in ends} == {NUM_SAMPLES}


def takeovers(site: Site) -> list[dict[str, Any]]:
    return [event for event in site.host.events("incident_opened") if event["strategy"] == "recover"]


def expect_fence_before_loss(site: Site, machine: Machine) -> None:
    """A machine that is cut off ends its own worker before its rank is anybody else's."""
    worker = site.worker(machine)
    assert worker is not None, site.story()
    death, num_lost = Death(worker), len(site.host.events("node_lost"))
    machine.cut_off()
    until(
        lambda: len(site.host.events("node_lost")) > num_lost,
        within_s=LOSS_S,
        what=f"{machine.name} is given up",
        tell=site.story,
    )
    lost = site.host.events("node_lost")[-1]
    assert lost["node"].startswith(machine.name)
    assert "silent" in lost["reason"]
    assert death.at is not None, "its worker is alive"
    assert death.at < datetime.fromisoformat(lost["at"]).timestamp()
    assert site.job(machine).process.poll() is None, "its agent has ended"


def test_the_world_shrinks_and_grows_with_machines_that_are_half_open_or_slow(
    machines: MakeMachines, tmp_path: Path
) -> None:
    first, second, third, fourth = made = machines(4)
    site = Site(made, tmp_path / "site", "--nnodes", "2:4", *LEASE)
    site.start(first)
    site.host.wait_for("node_joined", within_s=START_S)
    site.start(second, third, fourth)
    site.await_training(*made)
    survivors = {site.worker(first), site.worker(second)}

    second.slow_down(0.2)
    site.await_training(*made)
    second.heal()
    assert not site.host.events("node_lost"), site.story()
    assert not site.host.events("incident_opened"), site.story()

    for others, one, fault in (
        ([first, second, third], fourth, fourth.mute),
        ([first, second, fourth], third, third.deafen),
    ):
        worker = site.worker(one)
        fault()
        site.await_training(*others)
        assert worker is not None
        assert not is_alive(worker), "who is not heard, or hears nothing, must not train on"
        one.heal()
        site.await_training(*made)

    site.destroy(third, fourth)
    site.await_training(first, second)
    for lost in (third, fourth):
        site.give_up(lost)
    ends = site.finish()
    assert {end.pid for end in ends} == survivors
    assert {end.num_samples for end in ends} == {NUM_SAMPLES}, "each sample once an epoch"
    assert site.host.events("job_finished")[0]["restarts"] == 0
    assert {event["strategy"] for event in site.host.events("incident_opened")} <= {"elastic-training", "retry"}
