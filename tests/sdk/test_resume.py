"""A job that loses every process goes on from its checkpoints, and ends with the bits of an undisturbed run."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import HOLDFAST, Job, StartJob, clean_env, free_port, kill, start, until

SCRIPT = Path(__file__).parent / "scripts" / "saving.py"
ENDING = re.compile(r"rank (\d+) ends with (\w+)")
NUM_RANKS = 2
SHORT, TOTAL = 25, 60
JOB_S = 120.0
SEED = 1
MAX_TRIES = 5
BALLAST = ("--ballast", "48")
"""MiB: so long takes the writing that a kill hits it."""


def ending(job: Job, *, num_ranks: int = NUM_RANKS) -> str:
    """What every rank ends with."""
    assert job.wait(within_s=JOB_S) == 0, job.story()
    ends = dict(ENDING.findall(job.out))
    assert len(ends) == num_ranks, job.story()
    assert len(set(ends.values())) == 1, "all replicas are equal"
    return ends["0"]


def steps(directory: Path, rank: int) -> list[int]:
    return sorted(int(path.name[5:]) for path in (directory / f"rank_{rank}").glob("step_*"))


def aside(directory: Path, rank: int) -> list[str]:
    return sorted(path.name for path in (directory / f"rank_{rank}" / "aside").glob("*"))


def reached(job: Job) -> int:
    """The newest step that it has told of."""
    return max(map(int, re.findall(r"^step (\d+) ", job.out, re.MULTILINE)), default=0)


def has_ended(job: Job) -> bool:
    return job.process.poll() is not None


def file(directory: Path, rank: int, step: int) -> Path:
    return directory / f"rank_{rank}" / f"step_{step:08}"


@dataclass(frozen=True)
class Calm:
    """What undisturbed runs end with, and the checkpoints of the short one."""

    short: str
    total: str
    directory: Path


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calm]:
    root = tmp_path_factory.mktemp("calm")
    jobs = []

    def play(name: str, *args: object) -> str:
        command = [HOLDFAST, "run", "--nproc-per-node", NUM_RANKS, SCRIPT, *args]
        jobs.append(start([*map(str, command)], directory=root / name))
        return ending(jobs[-1])

    try:
        short = play("short", root / "saved", SHORT)
        yield Calm(short, play("total", root / "none", TOTAL, "--no-checkpoints"), root / "saved")
    finally:
        for job in jobs:
            job.destroy()


@pytest.fixture
def saved(calm: Calm, tmp_path: Path) -> Path:
    """Checkpoints of the steps 10 and 20, of every rank."""
    shutil.copytree(calm.directory, tmp_path / "saved")
    return tmp_path / "saved"


Train = Callable[..., Job]


@pytest.fixture
def train(run_job: StartJob) -> Train:
    def begin(directory: Path, *args: object, num_ranks: int = NUM_RANKS, flags: tuple[object, ...] = ()) -> Job:
        return run_job("--nproc-per-node", num_ranks, *flags, SCRIPT, directory, *args)

    return begin


# --- a job that is started again --------------------------------------------------------------------------------


def test_a_job_goes_on_where_its_checkpoints_are(train: Train, calm: Calm, saved: Path) -> None:
    assert [steps(saved, rank) for rank in range(NUM_RANKS)] == [[10, 20]] * NUM_RANKS
    job = train(saved, TOTAL)
    assert ending(job) == calm.total
    assert f"holdfast: resumed at step 20 from {saved}\n" in job.err
    assert "step 20 " not in job.out
    assert "step 21 " in job.out
    assert [steps(saved, rank) for rank in range(NUM_RANKS)] == [[50, 60]] * NUM_RANKS


def test_a_job_that_had_ended_has_nothing_left_to_do(train: Train, calm: Calm, saved: Path) -> None:
    assert ending(train(saved, TOTAL)) == calm.total
    again = train(saved, TOTAL)
    assert ending(again) == calm.total
    assert f"resumed at step {TOTAL} from" in again.err
    assert not reached(again)


def test_killed_as_a_whole_again_and_again(train: Train, calm: Calm, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    num_killed = 0
    for first in (1, 17, 33):
        job, step = train(tmp_path / "saved", TOTAL), first + rng.randrange(16)
        until(lambda: reached(job) >= step or has_ended(job), within_s=JOB_S, what=f"step {step}", tell=job.story)  # noqa: B023
        num_killed += not has_ended(job)
        job.destroy()
    assert num_killed
    last = train(tmp_path / "saved", TOTAL)
    assert ending(last) == calm.total
    assert "resumed at step" in last.err


def test_killed_as_a_whole_in_the_middle_of_writing(train: Train, tmp_path: Path) -> None:
    undisturbed = ending(train(tmp_path / "none", SHORT, *BALLAST, "--no-checkpoints"))
    directory = tmp_path / "saved"

    def is_writing() -> bool:
        """Every rank has the first one, and some rank a part of the second."""
        has_first = all(file(directory, rank, 10).exists() for rank in range(NUM_RANKS))
        return has_first and any(size(path) > 0 for path in directory.glob("rank_*/unfinished"))

    for _ in range(MAX_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        job = train(directory, SHORT, *BALLAST)
        workers = job.wait_for_workers().values()
        until(is_writing, within_s=JOB_S, what="a checkpoint is being written", tell=job.story)
        for pid in workers:
            kill(pid)
        job.destroy()
        if list(directory.glob("rank_*/unfinished")):
            break
    else:
        pytest.fail("no kill hit the writing of a checkpoint")
    last = train(directory, SHORT, *BALLAST)
    assert ending(last) == undisturbed
    assert "resumed at step 10 from" in last.err
    assert [steps(directory, rank) for rank in range(NUM_RANKS)] == [[10, 20]] * NUM_RANKS


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@pytest.mark.parametrize("how", ["all are killed", "all are caught in their update"])
def test_where_nobody_has_a_whole_state_the_same_job_goes_on_from_its_checkpoints(
    how: str, train: Train, calm: Calm, tmp_path: Path
) -> None:
    are_caught = "update" in how
    job = train(tmp_path / "saved", TOTAL, "--slow", 31, *(("--tear", 33) if are_caught else ()))
    workers = job.wait_for_workers()
    warm = parent(workers[0])
    if not are_caught:
        job.wait_for_output("step 33 ")
        for pid in workers.values():
            kill(pid)
    job.wait_for("resumed", within_s=JOB_S, step=30)
    again = job.events("workers_started")[-1]["pids"].values()
    assert {parent(pid) for pid in again} == {warm}, "the node, its agent and its warm interpreter stay"
    assert ending(job) == calm.total
    assert "holdfast: resumed at step 30 from" in job.err
    assert job.events("job_finished")[0]["restarts"] == 1
    if are_caught:
        assert "no rank holds a state to resume from" in job.events("stopping")[0]["reason"]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_where_nothing_is_repaired_the_next_generation_goes_on_from_the_checkpoints(
    train: Train, calm: Calm, tmp_path: Path
) -> None:
    job = train(tmp_path / "saved", TOTAL, "--slow", 40, flags=("--recover-strategy", "exit"))
    workers = job.wait_for_workers()
    job.wait_for_output("step 41 ")
    kill(workers[1])
    assert ending(job) == calm.total
    assert re.search(r"holdfast: resumed at step [34]0 from", job.err), job.story()
    assert not job.events("incident_opened")
    assert job.events("job_finished")[0]["restarts"] == 1


def test_what_is_left_of_a_job_that_lost_its_first_node_is_saved(run_job: StartJob, calm: Calm, tmp_path: Path) -> None:
    """Each node has a disk of its own: the dump is on that of the other one, which is not the first again."""
    endpoint = f"127.0.0.1:{free_port()}"
    conf = "keep_alive_interval=0.5,keep_alive_max_attempt=20,join_timeout=20"
    meeting = ("--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "j", "--rdzv-conf", conf)
    flags = ("--recover-strategy", "recover,dump", "--max-restarts", 0)

    def node(rank: int, *args: object) -> Job:
        command = (*meeting, *flags, "--node-rank", rank, SCRIPT, tmp_path / f"disk{rank}", TOTAL, *args)
        return run_job(*command, env={"OMP_NUM_THREADS": "1"})  # as with two workers on a node

    host = node(1, "--every", 1000, "--slow", 20)
    host.wait_for("node_joined")
    first = node(0, "--every", 1000, "--slow", 20)
    until(lambda: max(reached(host), reached(first)) > 20, within_s=JOB_S, what="step 21", tell=host.story)
    first.destroy()
    assert host.wait(within_s=JOB_S) != 0, host.story()
    told = re.search(r"holdfast: step (\d+) is saved in", host.err)
    assert told is not None, host.story()
    assert int(told[1]) > 20
    assert [event["strategy"] for event in host.events("incident_opened")][-1] == "dump"
    assert host.events("incident_closed")[-1]["verdict"] == "dumped"
    again = [node(1), node(0)]
    assert [job.wait(within_s=JOB_S) for job in again] == [0, 0], again[0].story()
    ends = dict(ENDING.findall("".join(job.out for job in again)))
    assert ends == {"0": calm.total, "1": calm.total}
    assert f"holdfast: resumed at step {told[1]} from {tmp_path / 'disk0'}\n" in again[1].err


def test_what_cannot_be_repaired_is_saved_and_the_next_start_goes_on_from_it(
    train: Train, calm: Calm, saved: Path
) -> None:
    job = train(saved, TOTAL, "--every", 1000, "--bug", 33)
    assert job.wait(within_s=JOB_S) != 0
    assert "ValueError: a bug" in job.err
    assert f"holdfast: step 33 is saved in {saved / 'rank_0'}\n" in job.err
    assert [event["strategy"] for event in job.events("incident_opened")] == ["recover-in-place", "dump"]
    assert [event["verdict"] for event in job.events("incident_closed")] == ["followed", "dumped"]
    again = train(saved, TOTAL)
    assert ending(again) == calm.total
    assert f"holdfast: resumed at step 33 from {saved}\n" in again.err


def test_what_could_not_be_saved_is_not_said_to_be(train: Train, small_disk: Path) -> None:
    args = ("--every", 1000, "--bug", 3)
    job = train(small_disk, TOTAL, *args, flags=("--recover-strategy", "dump", "--max-restarts", 0))
    assert job.wait(within_s=JOB_S) != 0
    assert [event["verdict"] for event in job.events("incident_closed")] == ["failed"]
    reason = job.events("job_finished")[0]["outcome"]["reason"]
    assert "the last step was not saved: rank 0 failed step 3 (saving): " in reason
    assert "[Errno 28] No space left on device" in reason
    assert "is saved in" not in job.err


def test_where_the_script_saves_nothing_nothing_is_tried(train: Train, tmp_path: Path) -> None:
    job = train(tmp_path, TOTAL, "--no-checkpoints", "--bug", 3, flags=("--max-restarts", 0))
    assert job.wait(within_s=JOB_S) != 0
    assert [event["strategy"] for event in job.events("incident_opened")] == ["recover-in-place"]
    reason = job.events("job_finished")[0]["outcome"]["reason"]
    assert "no dump: no step is committed that run.checkpoint() would save" in reason


# --- with notice ------------------------------------------------------------------------------------------------


def test_a_node_that_is_told_to_stop_saves_the_last_step_first(train: Train, calm: Calm, tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    job = train(directory, TOTAL, "--every", 1000, "--slow", 20)
    job.wait_for_output("step 21 ")
    kill(job.pid, signal.SIGTERM)
    assert job.wait(within_s=JOB_S) == 143, job.story()
    told = re.search(r"holdfast: step (\d+) is saved in", job.err)
    assert told is not None, job.story()
    assert reached(job) <= int(told[1]), "nothing is done that is not saved"
    again = train(directory, TOTAL)
    assert ending(again) == calm.total
    assert f"holdfast: resumed at step {told[1]} from {directory}\n" in again.err


def test_a_peer_that_hangs_does_not_keep_the_last_step_from_being_saved(train: Train, tmp_path: Path) -> None:
    args = ("--every", 1000, "--slow", 20)
    job = train(tmp_path / "saved", TOTAL, *args, flags=("--shutdown-timeout", 6, "--hang-timeout", "off"))
    workers = job.wait_for_workers()
    job.wait_for_output("step 21 ")
    kill(workers[1], signal.SIGSTOP)
    kill(job.pid, signal.SIGTERM)
    assert job.wait(within_s=20) == 143, job.story()
    (saved,) = steps(tmp_path / "saved", 0)
    assert saved > 20


def test_a_peer_that_dies_meanwhile_does_not_keep_the_last_step_from_being_saved(
    train: Train, calm: Calm, tmp_path: Path
) -> None:
    directory = tmp_path / "saved"
    job = train(directory, TOTAL, "--every", 1000, "--slow", 20, flags=("--hang-timeout", "off"))
    workers = job.wait_for_workers()
    job.wait_for_output("step 21 ")
    kill(workers[1], signal.SIGSTOP)
    kill(job.pid, signal.SIGTERM)
    job.wait_for("stopping")
    kill(workers[1])
    assert job.wait(within_s=JOB_S) == 143, job.story()
    again = train(directory, TOTAL)
    assert ending(again) == calm.total
    assert re.search(r"holdfast: resumed at step 2\d from", again.err)


BeginTwo = Callable[..., tuple[Job, Job]]


@pytest.fixture
def begin_two(run_job: StartJob) -> BeginTwo:
    """Two nodes with a worker each, once they train; the first one hosts the master."""

    def begin(directory: Path) -> tuple[Job, Job]:
        conf = "keep_alive_interval=0.5,keep_alive_max_attempt=20,join_timeout=20"
        meeting = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "j", "--rdzv-conf", conf)
        command = (*meeting, SCRIPT, directory, TOTAL, "--every", 1000, "--slow", 20)
        env = {"OMP_NUM_THREADS": "1"}  # as with two workers on a node
        host = run_job(*command, env=env)
        host.wait_for("node_joined")
        second = run_job(*command, env=env)
        until(lambda: max(reached(host), reached(second)) > 20, within_s=JOB_S, what="step 21", tell=host.story)
        return host, second

    return begin


@pytest.mark.parametrize("how", ["both are preempted", "one is interrupted", "the last one is preempted"])
def test_nodes_that_are_told_to_stop_save_the_last_step_first(
    how: str, begin_two: BeginTwo, run_job: StartJob, calm: Calm, tmp_path: Path
) -> None:
    directory = tmp_path / "saved"
    host, second = begin_two(directory)
    if how == "the last one is preempted":
        second.destroy()
        host.wait_for("incident_opened", strategy="recover")
    for job in {"both are preempted": (second, host), "one is interrupted": (second,)}.get(how, (host,)):
        kill(job.pid, signal.SIGINT if how == "one is interrupted" else signal.SIGTERM)
    until(lambda: has_ended(host) and has_ended(second), within_s=JOB_S, what="the end", tell=host.story)
    told = re.findall(r"holdfast: step (\d+) is saved in", host.err + second.err)
    assert told, host.story() + second.story()
    again = run_job("--nproc-per-node", NUM_RANKS, SCRIPT, directory, TOTAL)
    assert ending(again) == calm.total
    assert f"holdfast: resumed at step {max(map(int, told))} from {directory}\n" in again.err


def test_a_stream_goes_on_at_its_place(train: Train, tmp_path: Path) -> None:
    undisturbed = ending(train(tmp_path / "none", TOTAL, "--stream", "--no-checkpoints"))
    ending(train(tmp_path / "saved", SHORT, "--stream"))
    assert ending(train(tmp_path / "saved", TOTAL, "--stream")) == undisturbed


def test_without_a_job_around_it(tmp_path: Path) -> None:
    def alone(name: str, total: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, SCRIPT, tmp_path / name, str(total)]
        return subprocess.run(command, capture_output=True, text=True, timeout=JOB_S, check=True, env=clean_env())

    undisturbed = alone("other", TOTAL).stdout.split()[-1]
    alone("saved", SHORT)
    again = alone("saved", TOTAL)
    assert "holdfast: resumed at step 20 from" in again.stderr
    assert again.stdout.split()[-1] == undisturbed


# --- checkpoints that not every rank has ------------------------------------------------------------------------


def corrupt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(("harm", "rank"), [(Path.unlink, 0), (corrupt, 1)])
def test_the_newest_that_every_rank_has_whole_counts(
    harm: Callable[[Path], None], rank: int, train: Train, calm: Calm, saved: Path
) -> None:
    kept = file(saved, 1 - rank, 20).read_bytes()
    harm(file(saved, rank, 20))
    job = train(saved, TOTAL)
    assert ending(job) == calm.total
    assert f"resumed at step 10 from {saved} (step 20 is not whole on rank {rank};" in job.err
    assert aside(saved, 1 - rank) == ["step_00000020"]
    assert (saved / f"rank_{1 - rank}" / "aside" / "step_00000020").read_bytes() == kept
    assert aside(saved, rank) == ([] if harm is Path.unlink else ["step_00000020"])


def test_none_that_every_rank_has_begins_at_step_0_and_says_so(train: Train, calm: Calm, saved: Path) -> None:
    file(saved, 0, 10).unlink()
    file(saved, 1, 20).unlink()
    job = train(saved, TOTAL)
    assert ending(job) == calm.total
    assert f"no checkpoint in {saved} is whole on every rank: starting at step 0 (step 20 is not whole on" in job.err
    assert [aside(saved, rank) for rank in range(NUM_RANKS)] == [["step_00000020"], ["step_00000010"]]


def test_a_rank_that_has_none_takes_the_state_from_one_that_has(train: Train, calm: Calm, saved: Path) -> None:
    shutil.rmtree(saved / "rank_0")
    job = train(saved, SHORT)
    assert ending(job) == calm.short
    assert "resumed at step 20 from" in job.err
    assert steps(saved, 0) == [20]


def test_more_ranks_than_before(train: Train, saved: Path) -> None:
    job = train(saved, TOTAL, num_ranks=3)
    ending(job, num_ranks=3)
    assert "resumed at step 20 from" in job.err
    assert [steps(saved, rank) for rank in range(3)] == [[50, 60]] * 3


def test_fewer_ranks_than_before(train: Train, saved: Path) -> None:
    job = train(saved, TOTAL, num_ranks=1)
    ending(job, num_ranks=1)
    assert "resumed at step 20 from" in job.err
    assert [steps(saved, 0), steps(saved, 1)] == [[50, 60], [10, 20]]
    grown = train(saved, TOTAL + 5)
    ending(grown)
    assert f"resumed at step {TOTAL} from" in grown.err


# --- while somebody has the state -------------------------------------------------------------------------------


def test_a_rank_killed_while_it_saves_is_repaired_and_nobody_reads(train: Train, calm: Calm, tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    job = train(directory, SHORT, "--kill", "20:1")
    assert ending(job) == calm.short
    assert [event["verdict"] for event in job.events("incident_closed")] == ["repaired"]
    assert not job.events("stopping")
    assert "read " not in job.out
    assert [steps(directory, r) for r in range(NUM_RANKS)] == [[10, 20]] * NUM_RANKS, "the newcomer saves it too"


def test_a_slow_disk_is_no_hang(train: Train, calm: Calm, tmp_path: Path) -> None:
    job = train(tmp_path / "saved", SHORT, "--hold", "20:1", flags=("--hang-timeout", "2:2"))
    assert ending(job) == calm.short
    assert not job.events("incident_opened")


# --- disks that fail, and mistakes ------------------------------------------------------------------------------


def test_a_full_disk_is_a_warning(train: Train, calm: Calm, small_disk: Path) -> None:
    job = train(small_disk, SHORT)
    assert ending(job) == calm.short
    for rank in range(NUM_RANKS):
        place = small_disk / f"rank_{rank}"
        for step in (10, 20):
            told = f"holdfast: rank {rank}: no checkpoint of step {step} in {place}: [Errno 28] No space left on device"
            assert told in job.err
        assert list(place.iterdir()) == [], "what could not be finished does not fill the disk"


@pytest.mark.parametrize("name", ["saved", "saved/rank_1"])
def test_a_directory_that_cannot_be_used_ends_the_job_before_it_trains(name: str, train: Train, tmp_path: Path) -> None:
    in_the_way = tmp_path / name
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.touch()
    job = train(tmp_path / "saved", SHORT)
    assert job.wait(within_s=JOB_S) == 1, job.story()
    assert f"File exists: '{in_the_way}'" in job.err
    last = job.err.rstrip().splitlines()[-1]
    assert f"SpecError: checkpoint(directory): '{tmp_path}/saved' is not valid" in last, job.story()
    assert "it is not on rank" in last
    assert not reached(job)


def test_checkpoints_of_another_model_end_the_job_before_it_trains(train: Train, saved: Path) -> None:
    job = train(saved, TOTAL, "--width", "48")
    assert job.wait(within_s=JOB_S) == 1, job.story()
    last = job.err.rstrip().splitlines()[-1]
    assert f"SpecError: checkpoint(directory): '{saved}' is not valid; step 20 in it does not fit" in last, job.story()
    assert "(model.0.bias is torch.float32 [48] here and torch.float32 [32] there)" in last
    assert not reached(job)
    assert [steps(saved, rank) for rank in range(NUM_RANKS)] == [[10, 20]] * NUM_RANKS


def test_it_is_called_on_every_rank(run_job: StartJob, script: Callable[..., Path]) -> None:
    path = script("""
        import torch
        import holdfast

        run = holdfast.init()
        run.protect(model=torch.nn.Linear(2, 2))
        if run.is_main:
            run.checkpoint("saved", every=10)
        for step in run.steps(total=10):
            print("step", flush=True)
    """)
    job = run_job("--nproc-per-node", 2, path)
    assert job.wait(within_s=JOB_S) == 1, job.story()
    told = "SpecError: run.checkpoint(): 'called on 1 of 2 ranks' is not valid; call it on every rank"
    assert told in job.err.rstrip().splitlines()[-1], job.story()
    assert "step" not in job.out
