"""What the end of a worker shows, and which end is to blame."""

from __future__ import annotations

import signal

import pytest
from driving import failure

from holdfast.core.faults import (
    CRASH_SIGNALS,
    MAX_HEADLINE,
    PEER_LOST_MARKS,
    FaultKind,
    classify,
    exit_code_of,
    find_root_cause,
    signal_name,
)
from holdfast.core.ids import WorkerFailure

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\n    boom()\nValueError: no more data\n'


def killed(rank: int, number: int, **more: object) -> WorkerFailure:
    return failure(rank, code=None, signal=number, **more)


@pytest.mark.parametrize(
    ("end", "kind", "evidence"),
    [
        (failure(0, error=TRACEBACK), FaultKind.EXCEPTION, "ended with exit code 1: ValueError: no more data"),
        (failure(0, code=3), FaultKind.EXITED, "ended with exit code 3"),
        (killed(0, signal.SIGKILL), FaultKind.KILLED, "killed by SIGKILL"),
        (killed(0, signal.SIGSEGV), FaultKind.CRASHED, "died of SIGSEGV"),
        (killed(0, signal.SIGSEGV, error="Fatal Python error"), FaultKind.CRASHED, "died of SIGSEGV"),
        (killed(0, signal.SIGUSR1), FaultKind.SIGNALLED, "ended with SIGUSR1"),
        (killed(0, signal.SIGUSR1, error="left words"), FaultKind.EXCEPTION, "ended with SIGUSR1: left words"),
        (failure(0, error="RuntimeError: Broken pipe"), FaultKind.PEER_LOST, "lost a peer: RuntimeError: Broken pipe"),
        (failure(0, code=None, error="no such file"), FaultKind.NOT_STARTED, "could not be started: no such file"),
        (killed(0, signal.SIGTERM, stopped_by_us=True), FaultKind.STOPPED, "stopped with the group (SIGTERM)"),
    ],
)
def test_the_table(end, kind, evidence):
    assert (classify(end).kind, classify(end).evidence) == (kind, evidence)


@pytest.mark.parametrize("mark", PEER_LOST_MARKS)
def test_every_communication_error_is_an_echo(mark):
    assert classify(failure(0, error=f"Error: {mark} (1)")).kind is FaultKind.PEER_LOST


def test_two_ranks_on_one_gpu_have_lost_nobody():
    error = "torch.distributed.DistBackendError: NCCL error, invalid usage\nDuplicate GPU detected : rank 0 and rank 1"
    assert classify(failure(0, error=error)).kind is FaultKind.EXCEPTION


@pytest.mark.parametrize("number", sorted(CRASH_SIGNALS))
def test_every_crash_signal_is_a_crash(number):
    assert classify(killed(0, number)).kind is FaultKind.CRASHED


def test_an_echo_deep_in_a_traceback_is_not_the_headline():
    error = "ConnectionError: Broken pipe\n\nTraceback (most recent call last):\n  x\nValueError: mine"
    assert classify(failure(0, error=error)).kind is FaultKind.EXCEPTION


def test_an_echo_below_the_headline_of_a_message_of_several_lines_is_an_echo():
    error = "Traceback (most recent call last):\n  frame\nRuntimeError: gone:\n[gloo/transport] reset\nsee the log"
    assert classify(failure(0, error=error)).kind is FaultKind.PEER_LOST


def test_a_long_headline_is_cut():
    evidence = classify(failure(0, error="ValueError: " + "x" * 500)).evidence
    assert evidence.endswith("x…")
    assert len(evidence) == len("ended with exit code 1: ") + MAX_HEADLINE


def test_the_first_failure_seen_is_the_root_cause():
    first, second = failure(1, code=3), failure(0, code=4)
    assert find_root_cause([first, second]) == (first, (second,))


def test_an_echo_is_not_blamed_although_it_was_seen_first():
    echo, cause = failure(0, error="RuntimeError: Connection reset by peer"), killed(1, signal.SIGKILL)
    stopped = killed(2, signal.SIGTERM, stopped_by_us=True)
    assert find_root_cause([stopped, echo, cause]) == (cause, (echo, stopped))


def test_without_failures_nobody_is_blamed():
    assert find_root_cause([]) == (None, ())


@pytest.mark.parametrize(
    ("end", "code"), [(failure(0, code=3), 3), (killed(0, 9), 137), (failure(0, code=None), 1), (failure(0, code=0), 1)]
)
def test_the_exit_code_is_what_a_shell_would_show(end, code):
    assert exit_code_of(end) == code


def test_a_signal_without_a_name_has_its_number():
    assert signal_name(15) == "SIGTERM"
    assert signal_name(200) == "signal 200"
