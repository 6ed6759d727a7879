"""TaskD's agent: another launcher's workers as a node of the job. For scripts, `holdfast run` is the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.core.ids import Address
from holdfast.core.workers import Exit
from holdfast.errors import JobError, SpecError
from holdfast.spec.agent import AgentSpec, load_agent
from holdfast.spec.job import JobRules
from holdfast.taskd.convention import answers, not_before
from holdfast.taskd.dialling import Absent, dialled, fetch_job
from holdfast.taskd.node import KILL, MONITOR, START, Functions, Node

START_SOME = "START_WORKER_LIST"
OPERATORS = (KILL, START, START_SOME, MONITOR)
NEEDED = (KILL, START, MONITOR)
NETWORK_S = 180.0
"""For the manager to answer for the first time."""
PAUSE_S = 0.5

_specs: list[AgentSpec] = []
"""What was asked for last, if anything."""
_functions: dict[str, Callable[..., Any]] = {}


@answers
def init_taskd_agent(config: Mapping[str, Any], cls: object = None) -> None:
    """Check the configuration; `cls`, an agent of torch's, has no part here."""
    _specs.clear()
    _specs.append(load_agent(config))


@answers
def register_func(operator: str, func: Callable[..., Any]) -> None:
    """Lend a function of the launcher's."""
    if operator not in OPERATORS:
        raise SpecError("operator", operator, f"it must be one of {', '.join(OPERATORS)}")
    if not callable(func):
        raise SpecError("func", func, "it must be a function")
    _functions[operator] = func


@answers
def start_taskd_agent() -> None:
    """Be a node of the manager's job until that is over; a job that fails is a failure here too."""
    if not _specs:
        raise not_before("init_taskd_agent")
    if missing := [name for name in NEEDED if name not in _functions]:
        raise JobError(f"register_func: {', '.join(missing)} is missing; the agent of a script is 'holdfast run'")
    ended = asyncio.run(_run(_specs[0], _functions))
    if ended.code:
        raise JobError(ended.reason)


async def _run(spec: AgentSpec, functions: Functions) -> Exit:
    rules = await _rules(spec)
    return await Node(spec, replace(rules, job_id=spec.job_id or rules.job_id), functions).run()


async def _rules(spec: AgentSpec) -> JobRules:
    """The rules of the manager's job, as soon as there is one."""
    address = Address(spec.host, spec.port)
    deadline = asyncio.get_running_loop().time() + NETWORK_S
    while True:
        try:
            async with dialled(address, token=spec.token, tls=spec.tls) as session:
                return msgspec.convert((await fetch_job(session, address))["rules"], JobRules)
        except Absent:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(PAUSE_S)
