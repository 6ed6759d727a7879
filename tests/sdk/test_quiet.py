"""In the steady state a step sends no message: the agent and the master hear of nothing, but for heartbeats."""

from __future__ import annotations

from pathlib import Path

from jobs import StartJob

SCRIPT = Path(__file__).parent / "scripts" / "measured.py"
BEAT_BYTES = 2000
"""A whole status, both ways, with room to spare; sent once a second."""


def test_five_hundred_steps_send_nothing(run_job: StartJob, tmp_path: Path) -> None:
    job = run_job("--nproc-per-node", 2, SCRIPT, tmp_path)
    assert job.wait(within_s=90) == 0, job.story()
    told = [line.split() for line in job.out.splitlines() if line.startswith("control")]
    assert len(told) == 2, job.out
    for _, to_agent, to_store, between_master, seconds in told:
        assert int(to_agent) == 0, "bytes between a worker and its agent"
        assert int(to_store) == 0, "bytes between a worker and the store"
        assert int(between_master) <= (float(seconds) + 2) * BEAT_BYTES, "bytes between agent and master"
        assert int(between_master) > 0, "the counter of the beats counts"
