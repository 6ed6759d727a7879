"""Every sample is trained on exactly once an epoch, told by the weights of a model that counts."""

from __future__ import annotations

from pathlib import Path

from jobs import StartJob

SCRIPT = Path(__file__).parent / "scripts" / "counting.py"


def test_each_sample_counts_once_an_epoch_through_faults_and_prefetching(run_job: StartJob, tmp_path: Path) -> None:
    """The last batch of an epoch is smaller; steps 8, 17 and 26 are such.

    After a step that strikes at its end comes one that does not: else a rank that is behind would be overtaken by the
    next fault, and get the step from a peer.
    """
    faults = "3:1", "8:2", "10:0", "14:3", "17:0", "17:1", "20:2", "26:3"
    marks = tmp_path / "marks"
    marks.mkdir()
    job = run_job("--nproc-per-node", 4, SCRIPT, marks, *faults)
    assert job.wait(within_s=90) == 0, job.story()
    assert len(list(marks.iterdir())) == len(faults), "every fault struck"
    assert "uses {3.0: 272}" in job.out
    assert not job.events("stopping"), "nobody was restarted with the group"
