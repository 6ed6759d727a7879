"""Whatever a rank waits for in its group, severing the group ends the wait; what is not the group's is left alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import blocked
import pytest
import torch.distributed as dist
from jobs import is_stopped, until

PROMPT_S = 20.0
"""Severing ends a wait within milliseconds; this leaves room for a busy machine."""
CONNECT_S = 20.0
START_S = 40.0

Start = Callable[..., tuple[multiprocessing.Process, Connection]]


@pytest.fixture(scope="module")
def context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["blocked"])
    return context


@pytest.fixture
def start(context: multiprocessing.context.ForkServerContext) -> Iterator[Start]:
    """Start a function of `blocked` in a process of its own, with one store for all."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []

    def begin(target: Callable[..., None], *args: object) -> tuple[multiprocessing.Process, Connection]:
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, store.port, *args))
        process.start()
        processes.append(process)
        return process, ours

    yield begin
    for process in processes:
        process.kill()
        process.join()


def hear(line: Connection, *, within_s: float) -> object:
    assert line.poll(within_s), f"nothing came within {within_s:g} s"
    return line.recv()


def begin_wait(start: Start, target: Callable[..., None]) -> Connection:
    """A victim that waits, with a peer that has built its half of the group and is stopped."""
    peer, peers_line = start(blocked.peer)
    _, line = start(target)
    assert hear(peers_line, within_s=START_S) == "built"
    os.kill(peer.pid, signal.SIGSTOP)
    until(lambda: is_stopped(peer.pid), within_s=PROMPT_S, what="the peer is stopped")
    assert hear(line, within_s=START_S) == "waiting"
    assert not line.poll(0.2), "it does not wait"
    return line


@pytest.mark.parametrize("target", [blocked.in_collective, blocked.in_store], ids=["a collective", "the store"])
def test_a_wait_for_a_silent_peer_ends_and_every_connection_with_it(start: Start, target: Callable[..., None]) -> None:
    line = begin_wait(start, target)
    line.send("sever")
    answers = [hear(line, within_s=PROMPT_S) for _ in range(3)]
    assert "severed" in answers
    assert "cut" in answers
    assert [answer[0] for answer in answers if answer not in ("severed", "cut")] == ["raised"]


def test_a_collective_that_gloo_never_ends_is_given_up_and_left(start: Start) -> None:
    line = begin_wait(start, blocked.in_forgotten_collective)
    line.send("release")
    assert hear(line, within_s=PROMPT_S)[:2] == ("raised", "Severed")
    assert hear(line, within_s=PROMPT_S) == "left"


@pytest.mark.parametrize("place", [blocked.in_constructor, blocked.at_dead_store, blocked.at_silent_store])
def test_the_wait_for_a_rank_that_never_comes_ends(start: Start, place: Callable[..., None]) -> None:
    _, line = start(place)
    assert hear(line, within_s=START_S) == "waiting"
    assert not line.poll(0.5), "it does not wait"
    line.send("sever")
    answers = [hear(line, within_s=PROMPT_S), hear(line, within_s=PROMPT_S)]
    assert ("raised", "Severed") in [answer[:2] for answer in answers]


def test_the_wait_for_a_rank_that_vanishes_while_it_connects_ends(start: Start) -> None:
    """One side of a pair waits to be connected to, and then has no socket that could be shut; chance says which."""
    for generation in range(1, 10):
        vanishing, peers_line = start(blocked.vanishing_peer, generation)
        assert hear(peers_line, within_s=START_S) == "built"
        _, line = start(blocked.in_constructor, generation)
        assert hear(line, within_s=START_S) == "waiting"
        until(lambda pid=vanishing.pid: is_stopped(pid), within_s=START_S, what="the peer vanishes")
        if not line.poll(1.0):
            break
    else:
        pytest.fail("nobody ever waited to be connected to")
    began = time.monotonic()
    line.send("sever")
    answers = [hear(line, within_s=CONNECT_S) for _ in range(2)]
    assert "severed" in answers
    assert ("raised", "Severed") in [answer[:2] for answer in answers]
    assert time.monotonic() - began < blocked.WAIT_S / 2


@pytest.mark.parametrize("target", [blocked.in_python, blocked.in_loader], ids=["Python", "a loader"])
def test_other_waits_go_on_and_the_next_collective_raises_at_once(start: Start, target: Callable[..., None]) -> None:
    line = begin_wait(start, target)
    line.send("sever")
    assert hear(line, within_s=PROMPT_S) == "severed"
    assert not line.poll(0.2), "what has nothing to do with the group was ended"
    line.send("release")
    assert hear(line, within_s=PROMPT_S)[0] == "returned"
    assert hear(line, within_s=PROMPT_S) == "waiting"
    assert hear(line, within_s=PROMPT_S)[0] == "raised"


def test_sockets_of_the_script_are_left_alone(start: Start) -> None:
    line = begin_wait(start, blocked.with_own_sockets)
    line.send("release")
    assert hear(line, within_s=PROMPT_S) == ("returned", "", "")
    assert hear(line, within_s=PROMPT_S) == "waiting"
    assert hear(line, within_s=PROMPT_S)[0] == "raised"
