"""The frame of a benchmark: it tells how far it is, can be interrupted, and leaves no process behind."""

import json
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from harness import JobFailed
from processes import adopt_orphans, end_all_descendants, uninterrupted

Results = TypeVar("Results")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def conduct(
    measure: Callable[[], Results],
    *,
    table: Callable[[Results], str],
    document: Callable[[Results], object],
    as_json: bool,
    is_good: Callable[[Results], bool] = lambda results: True,
) -> int:
    """Measure, print the table or the raw samples, and return the exit code: 1 if the results are not good.

    SIGTERM and SIGHUP act like Ctrl-C.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _interrupt)
    adopt_orphans()
    try:
        results = measure()
    except JobFailed as failure:
        say(f"stopped: a job {failure}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    finally:
        with uninterrupted():
            end_all_descendants()
    if as_json:
        say(table(results))
        print(json.dumps(document(results), indent=1))
    else:
        print(table(results))
    return 0 if is_good(results) else 1


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
