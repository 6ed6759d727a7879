"""A worker of ours cannot tell from what it sees that torchrun did not start it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from probes import MODES

Probe = Callable[[str, str], list[dict[str, Any]]]

TOPICS = {
    "command line": ("argv", "orig_argv", "cmdline", "ps", "cwd"),
    "main module": ("file", "name", "package", "spec_name", "loader", "doc", "names", "main_is_this"),
    "import path": ("path0", "path_tail", "executable"),
    "interpreter flags": ("flags", "warnoptions", "dont_write_bytecode", "xoptions"),
    "standard streams": ("stdin", "stdout", "stderr", "stdio_originals"),
    "hooks": ("hooks", "traced", "gc", "recursion_limit"),
    "process": ("is_session_leader", "is_group_leader", "descriptors", "umask", "niceness", "affinity"),
    "signals": ("handlers", "kernel_signals", "wakeup_fd"),
    "threads": ("num_threads", "thread", "is_main_thread", "multiprocessing", "start_method"),
    "torch threads": ("torch_threads", "torch_interop_threads"),
}

THROUGH_MULTIPROCESSING = {
    *("orig_argv", "cmdline", "ps", "path0", "path_tail", "stdin", "stdout", "stderr", "stdio_originals"),
    *("is_session_leader", "is_group_leader", "descriptors", "multiprocessing", "start_method"),
}
"""For --run-path, torchrun has multiprocessing start a function in place of a script, and that shows."""

OURS_ALONE = {
    "HOLDFAST_AGENT",
    "HOLDFAST_BEACON",
    "HOLDFAST_GENERATION",
    "HOLDFAST_LAUNCHED_AT",
    "HOLDFAST_RUN",
}
MAY_DIFFER = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_MAX_RESTARTS",
    "PROBE_DIR",
    "HOLDFAST_TEST_MARK",
}

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(
    ("launcher", "mode"), [*(("warm", mode) for mode in MODES), ("spawn", "script"), ("handed over", "script")]
)
def test_a_worker_sees_what_it_would_see_under_torchrun(probe: Probe, launcher: str, mode: str, topic: str):
    names = set(TOPICS[topic]) - (THROUGH_MULTIPROCESSING if mode == "run_path" else set())
    for theirs, ours in zip(probe("torchrun", mode), probe(launcher, mode), strict=True):
        assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}


def test_only_a_warm_worker_writes_whole_lines(probe: Probe):
    for launcher, expected in {"torchrun": True, "spawn": True, "warm": False}.items():
        assert [record["written_through"] for record in probe(launcher, "script")] == [[expected] * 2] * 2


@pytest.mark.parametrize("mode", MODES)
def test_every_variable_of_torchrun_is_set_to_the_same_value(probe: Probe, mode: str):
    for theirs, ours in zip(probe("torchrun", mode), probe("warm", mode), strict=True):
        expected, got = theirs["environment"], ours["environment"]
        assert got.keys() - expected.keys() == OURS_ALONE
        assert expected.keys() - got.keys() == set()
        differing = {name for name in expected if got[name] != expected[name]}
        assert differing <= MAY_DIFFER


@pytest.mark.parametrize("mode", MODES)
def test_variables_that_may_differ_are_of_use(probe: Probe, mode: str):
    ours = probe("warm", mode)
    run_ids = {record["environment"]["TORCHELASTIC_RUN_ID"] for record in ours}
    assert len(run_ids) == 1
    for record in ours:
        env = record["environment"]
        assert record["store_answers"]
        assert env["TORCHELASTIC_ERROR_FILE"].endswith("/error.json")
        assert int(env["HOLDFAST_GENERATION"]) == 1
    if mode == "program":
        assert run_ids == {"77"}
    else:
        uuid.UUID(run_ids.pop())


def test_max_restarts_is_ours_by_default_and_the_users_if_given(probe: Probe):
    assert {record["environment"]["TORCHELASTIC_MAX_RESTARTS"] for record in probe("warm", "script")} == {"3"}
    for launcher in ("torchrun", "warm"):
        assert {record["environment"]["TORCHELASTIC_MAX_RESTARTS"] for record in probe(launcher, "run_path")} == {"2"}


def test_error_files_of_ranks_differ(probe: Probe):
    files = [record["environment"]["TORCHELASTIC_ERROR_FILE"] for record in probe("warm", "script")]
    assert len(set(files)) == len(files)


@pytest.mark.parametrize(
    "generator", ["python_random", "numpy_random", "numpy_generator", "torch_seed", "torch_random"]
)
@pytest.mark.parametrize("start_method", ["warm", "spawn"])
def test_ranks_draw_different_random_numbers(probe: Probe, start_method: str, generator: str):
    """Forks of one process share its generators' states unless something is done about it."""
    drawn = [record[generator] for record in probe(start_method, "script")]
    assert len(set(drawn)) == len(drawn), drawn


def test_a_lone_worker_has_all_cores_and_several_have_one_thread_each(probe: Probe):
    assert [record["torch_threads"] for record in probe("warm", "script")] == [1, 1]
    [alone] = probe("warm", "module")
    assert "OMP_NUM_THREADS" not in alone["environment"]
    assert alone["torch_threads"] == len(alone["affinity"])


def test_threads_that_the_user_asked_for(probe: Probe):
    assert [record["torch_threads"] for record in probe("warm", "package")] == [2, 2]


def test_the_warm_worker_shows_no_trace_of_holdfast(probe: Probe):
    for record in probe("warm", "script"):
        assert record["holdfast_in_main"] == []
        assert not any("holdfast" in part or "warm.py" in part for part in record["cmdline"])
