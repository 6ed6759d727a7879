"""The process the user started: it keeps watch over the agent.

guard -> agent -> warm interpreter -> workers. Each is a subreaper and holds a pipe or socket to the one above, so
whichever of them is killed, even two at once, one that lives notices at once and ends everything below it. If all
three are killed, the lifeline ends the workers.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from holdfast.agent.lifeline import Lifeline
from holdfast.agent.processes import become_subreaper, kill, kill_below, kill_marked
from holdfast.core.faults import signal_name


def run_guarded(body: Callable[[int, Lifeline], int], *, signals: Sequence[int], marker: str) -> int:
    """Run `body` in a child and return its exit code; nothing it started outlives this call.

    `body` gets a descriptor that reads as ended when this process is gone, and the lifeline for the workers.
    """
    become_subreaper()
    lifeline = Lifeline.open()
    alive_r, alive_w = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    awaited = {*signals, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    agent = os.fork()
    if agent == 0:
        os.close(alive_w)
        # Ctrl-C reaches the guard alone, which passes it on: otherwise the workers would get it twice.
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        _exit_with(lambda: body(alive_r, lifeline))
    os.close(alive_r)
    os.close(lifeline.reader)

    status = _attend(agent, awaited)
    kill_below()
    kill_marked(marker)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        sys.stderr.write(f"holdfast: the agent was ended by {signal_name(-code)}; its workers were stopped\n")
        return 128 - code
    return code


def _attend(agent: int, awaited: set[int]) -> int:
    """Pass signals on until the agent has ended; its wait status.

    They stay blocked and are taken one by one: a handler would miss one that comes just before a blocking call.
    """
    while True:
        ended, status = os.waitpid(agent, os.WNOHANG)
        if ended:
            return status
        if (number := signal.sigwait(awaited)) != signal.SIGCHLD:
            kill(agent, number)


def _exit_with(body: Callable[[], int]) -> None:
    code = 1
    try:
        code = body()
    except BaseException:  # noqa: BLE001  the root of the agent process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
