"""Whether a script has ended well, as its process itself can know it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from clusters import SOURCES, START_S, StartCluster
from jobs import PYTHON, clean_env, kill, listening_ports, until

from holdfast.cluster.voice import Voice

WATCH = """
from sys import exit as leave
import atexit, os, sys, threading
from holdfast.cluster.exits import ExitWatch
def begin():
    return ExitWatch()
watch = begin()
atexit.register(lambda: os.write(1, b"good" if watch.ended_well() else b"bad"))
def main(code):
    return code
def abort(code):
    raise SystemExit(code)
def caught(code):
    try:
        sys.exit(code)
    except SystemExit:
        pass
def cleaned(code):
    try:
        with threading.Lock():
            try:
                sys.exit(code)
            finally:
                os.getpid()
    except SystemExit as error:
        os.getpid()
        raise
def replaced(code, by):
    caught(code)
    abort(by)
def turned(code):
    try:
        sys.exit(code)
    except SystemExit:
        raise ValueError
"""

ENDS = [
    ("", "good", 0),
    ("sys.exit()", "good", 0),
    ("sys.exit(0)", "good", 0),
    ("exit(0)", "good", 0),
    ("sys.exit(main(1))", "bad", 1),
    ("main(sys.exit('no'))", "bad", 1),
    ("quit(3)", "bad", 3),
    ("raise ValueError", "bad", 1),
    ("abort(3)", "bad", 3),
    ("raise SystemExit(main(0))", "good", 0),
    ("caught(1)", "good", 0),
    ("leave(0)", "good", 0),
    ("leave(3)", "bad", 3),
    ("cleaned(0)", "good", 0),
    ("cleaned(3)", "bad", 3),
    ("replaced(0, 3)", "bad", 3),
    ("caught(1)\nraise SystemExit(0)", "good", 0),
    ("turned(0)", "bad", 1),
    ("try:\n    sys.exit(3)\nexcept SystemExit:\n    raise", "bad", 3),
    ("sys.excepthook = lambda *_: None\nraise ValueError", "bad", 1),
    ("try:\n    raise ValueError\nexcept ValueError:\n    sys.excepthook(*sys.exc_info())", "good", 0),
    ("thread = threading.Thread(target=sys.exit, args=[1]); thread.start(); thread.join()", "good", 0),
]


@pytest.mark.parametrize(("end", "verdict", "code"), ENDS, ids=[end or "nothing" for end, *_ in ENDS])
def test_an_end_is_known_for_what_it_is(end: str, verdict: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "ending.py"
    path.write_text(WATCH + end)
    env = clean_env() | {"PYTHONPATH": SOURCES}
    ended = subprocess.run([PYTHON, path], capture_output=True, text=True, env=env, check=False, timeout=60)
    assert (ended.stdout, ended.returncode) == (verdict, code), ended.stderr


PRINTED = """
import sys, threading
from holdfast.cluster.voice import Voice
print("kept")
if len(sys.argv) > 1:
    threading.Timer(0.1, Voice("0").die, ("over", 3)).start()
    print("x" * (1 << 20))
Voice("0").die("over", 3)
"""


def test_what_was_printed_before_a_sudden_end_is_not_lost() -> None:
    env = clean_env() | {"PYTHONPATH": SOURCES}
    env.pop("PYTHONUNBUFFERED", None)
    ended = subprocess.run([PYTHON, "-c", PRINTED], capture_output=True, env=env, check=False, timeout=60)
    assert (ended.stdout, ended.returncode) == (b"kept\n", 3)


def test_a_sudden_end_waits_for_no_reader() -> None:
    command, env = [PYTHON, "-c", PRINTED, "much"], clean_env() | {"PYTHONPATH": SOURCES}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
        assert process.wait(timeout=60) == 3


def test_a_module_ends_as_a_script_does(tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text(WATCH + "raise SystemExit(main(0))")
    env = clean_env() | {"PYTHONPATH": f"{SOURCES}:{tmp_path}"}
    ended = subprocess.run([PYTHON, "-m", "ending"], capture_output=True, text=True, env=env, check=True, timeout=60)
    assert ended.stdout == "good"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_scheduler_that_is_stopped_says_so_and_no_more(cluster: StartCluster, number: signal.Signals) -> None:
    it = cluster(1)
    scheduler = it.scheduler()
    until(lambda: len(listening_ports(scheduler.pid)) == 2, within_s=START_S, what="it serves", tell=scheduler.story)
    # It listens a moment before it serves.
    urllib.request.urlopen(f"http://127.0.0.1:{it.port}/healthz", timeout=START_S).close()
    kill(scheduler.pid, number)
    assert scheduler.wait(within_s=30) == 128 + number
    told = f"the scheduler got {number.name}"
    assert scheduler.err == f"holdfast: ending the job: {told}\nholdfast scheduler: job ended: {told}\n"


def test_a_process_whose_output_nobody_reads_any_more_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread:
        monkeypatch.setattr(sys, "stderr", unread)
        Voice("0").say("anybody there?")
        monkeypatch.undo()
        # What is left in it has nowhere to go.
        with contextlib.suppress(BrokenPipeError):
            unread.close()
