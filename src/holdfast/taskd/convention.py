"""How TaskD's functions answer: by True or False, with the reason in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from holdfast.errors import HoldfastError, JobError

log = logging.getLogger("holdfast.taskd")

P = ParamSpec("P")


def answers(function: Callable[P, None]) -> Callable[P, bool]:
    """True if the function returns; where it raises an error of ours, False and the error in the log."""

    @wraps(function)
    def answer(*args: P.args, **kwargs: P.kwargs) -> bool:
        try:
            function(*args, **kwargs)
        except HoldfastError as error:
            log.error("%s: %s", function.__name__, error)  # noqa: TRY400  the reason is for the user, not a trace
            return False
        return True

    return answer


def not_before(first: str) -> JobError:
    return JobError(f"{first} has to be called first, and to answer True")
