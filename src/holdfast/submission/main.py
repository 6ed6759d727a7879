"""The body of the submitter process."""

from __future__ import annotations

import asyncio
import os
from typing import NoReturn

from holdfast.agent.console import Console, plain_error
from holdfast.agent.processes import kill_below
from holdfast.errors import HoldfastError
from holdfast.spec.submit import SubmitSpec
from holdfast.submission.directory import JobDirectory
from holdfast.submission.means import Means, Plan, clean_up_after
from holdfast.submission.submitter import Submitter


def run_submission(spec: SubmitSpec, plan: Plan, directory: JobDirectory, *, guard: int) -> int:
    """Serve the job; `guard` reads as ended when the process above is gone. Returns the exit code."""
    above = os.getppid()
    try:
        means = Means(plan, guard=above)
    except HoldfastError as refusal:
        plain_error(str(refusal))
        return refusal.exit_code
    console = Console()
    for note in means.notes:
        console.say(note)

    async def serve() -> int:
        submitter = Submitter(spec, directory=directory, means=means, console=console)
        loop = asyncio.get_running_loop()
        loop.add_reader(guard, lambda: _perish(plan, directory, above) if not os.read(guard, 1) else None)
        return await submitter.run()

    try:
        return asyncio.run(serve())
    except* HoldfastError as group:
        error = next(each for each in _leaves(group) if isinstance(each, HoldfastError))
        console.say(str(error), level="error")
        code = error.exit_code
    finally:
        means.close()
        console.close(within_s=3.0)
    return code


def _perish(plan: Plan, directory: JobDirectory, guard: int) -> NoReturn:
    """The process that the user started is gone: nobody waits for this job any more."""
    kill_below()
    clean_up_after(plan, guard=guard)
    directory.close()
    os._exit(1)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
