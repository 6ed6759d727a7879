"""The submitter: turns what the platform, the masters and people say into events for the fleets, and performs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from dataclasses import replace
from typing import Any

from holdfast.agent.console import Console
from holdfast.agent.status import deserves_a_line
from holdfast.core.faults import signal_name
from holdfast.core.fleet import actions as do
from holdfast.core.fleet import events as event
from holdfast.core.fleet.machine import RoleSize
from holdfast.core.fleet.roles import Fleets
from holdfast.errors import JobError, SpecError
from holdfast.observe.entries import make_entry
from holdfast.observe.report import render_outcome
from holdfast.platforms.local.platform import LocalPlatform, Recipe
from holdfast.spec.runtime import node_environment
from holdfast.spec.submit import RoleSpec, SubmitSpec
from holdfast.submission.control import controlling
from holdfast.submission.directory import JobDirectory
from holdfast.submission.means import Means
from holdfast.submission.recipe import node_command, node_variables
from holdfast.submission.role_master import RoleMaster
from holdfast.submission.view import JobSeen

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
SENT_AWAY = (("node_unfit", "refused"), ("straggler_found", "replaced"))
"""Entries of the master, and what is decided in them, by which a node ends although it works."""
OURS = "holdfast: "
"""How lines begin that nodes say themselves; the submitter tells the story once for all of them."""


class Submitter:
    def __init__(self, spec: SubmitSpec, *, directory: JobDirectory, means: Means, console: Console) -> None:
        self._spec = spec
        self._directory = directory
        self._means = means
        self._console = console
        self._began_at = time.monotonic()
        sizes = [
            RoleSize(role=role.name, least=role.min_nodes, most=role.max_nodes, memory_bytes=role.memory_bytes)
            for role in spec.roles
        ]
        self._fleets = Fleets(spec.relaunch, sizes, shutdown_s=spec.shutdown_s)
        self._inbox: asyncio.Queue[event.JobEvent] = asyncio.Queue()
        self._events = open(spec.events_file, "a", buffering=1) if spec.events_file else None  # noqa: SIM115
        self._masters: dict[str, RoleMaster] = {}
        self._ruin: JobError | None = None

    async def run(self) -> int:
        """Serve the job until it has ended and its nodes are gone; its exit code."""
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._obey, number)
        async with asyncio.TaskGroup() as tasks:
            watching: list[asyncio.Task[None]] = []
            self._platform = LocalPlatform(
                {role.name: self._recipe(role) for role in self._spec.roles},
                tasks=tasks,
                slots=self._spec.platform.slots,
                network=self._means.network,
                cgroups=self._means.cgroups,
            )
            try:
                for index, role in enumerate(self._spec.roles):
                    self._masters[role.name] = self._host(role, index)
                watching.append(tasks.create_task(self._follow_platform()))
                watching += [tasks.create_task(self._follow_master(each)) for each in self._masters.values()]
                async with controlling(self, self._directory.socket):
                    for master in self._masters.values():
                        master.start()
                    await self._drive()
            finally:
                await self._platform.close()
                for task in watching:
                    task.cancel()
                for master in self._masters.values():
                    await master.close()
        return self._conclude()

    def _host(self, role: RoleSpec, index: int) -> RoleMaster:
        who = f"the master of {role.name}" if self._spec.has_several_roles else "the master"
        return RoleMaster(
            role,
            self._means.listen(index),
            directory=self._directory,
            dial=self._means.dial,
            on_death=lambda reason: self._console.say(
                f"{who} ended {reason}; it is started again from its journal", level="warning"
            ),
            on_ruin=self._note_ruin,
        )

    def _recipe(self, role: RoleSpec) -> Recipe:
        directory = self._directory
        return Recipe(
            job_id=self._spec.job_id,
            command=lambda order, address: node_command(
                role, directory, self._masters[role.name].address, order, address
            ),
            env=lambda order: node_environment(node_variables(role, order)),
            directory=directory.nodes,
            open_output=self._open_output,
            workdir=role.directory,
            cpu=role.cpu,
        )

    def _open_output(self, order: do.NodeOrder) -> tuple[int, int]:
        name = f"{order.role} {order.name}" if self._spec.has_several_roles else order.name
        log, prefix = self._directory.log(order.name), f"[{name}] "
        streams = [
            self._console.open_stream(target=target, prefix=prefix, file=log, hidden=OURS, may_be_terminal=False)
            for target in (1, 2)
        ]
        return streams[0], streams[1]

    # --- the loop ---------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        await self._perform(self._fleets.begin(now=self._now()))
        while not self._fleets.is_over:
            deadline = self._fleets.next_deadline()
            timeout = None if deadline is None else max(0.0, deadline - self._now())
            told: event.JobEvent = event.TimePassed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    told = await self._inbox.get()
            if self._ruin is not None:
                raise self._ruin
            await self._perform(self._fleets.handle(told, now=self._now()))
            self._console.show_status(self._status_line())

    async def _perform(self, actions: list[do.Action]) -> None:
        for action in actions:
            match action:
                case do.Create():
                    await self._platform.create(action.order)
                case do.Delete():
                    await self._platform.delete(action.node, grace_s=action.grace_s)
                case do.Interrupt():
                    self._platform.signal(action.node, signal.SIGINT)
                case do.Reserve():
                    self._platform.reserve(action.role, action.num_nodes)
                case do.Quarantine():
                    self._platform.quarantine(action.host)
                case do.Tell():
                    elapsed_s = self._now() - self._began_at
                    entry = make_entry(action.record, seq=0, elapsed_s=elapsed_s, wall=time.time())
                    self._tell(entry, self._masters[action.role])

    def _status_line(self) -> str:
        masters = list(self._masters.values())
        if not self._spec.has_several_roles:
            return masters[0].status.render(self._now())
        return "holdfast  " + "  ".join(f"{each.role.name}: {each.status.brief()}" for each in masters)

    # --- what others say --------------------------------------------------------------------------------------

    async def _follow_platform(self) -> None:
        async for told in self._platform.watch():
            self._inbox.put_nowait(told)

    async def _follow_master(self, master: RoleMaster) -> None:
        async for entry in master.story():
            self._tell(entry, master)
            if entry["kind"] == "node_lost":
                self._inbox.put_nowait(event.NodeGivenUp(entry["node"], entry["reason"]))
            elif (entry["kind"], entry.get("decision")) in SENT_AWAY:
                self._inbox.put_nowait(event.NodeUnfit(entry["node"], entry["text"]))
            elif master.outcome is not None:
                self._inbox.put_nowait(event.RoleFinished(master.role.name, master.outcome.exit_code))

    def _tell(self, entry: dict[str, Any], master: RoleMaster) -> None:
        several, role = self._spec.has_several_roles, master.role
        if self._events is not None:
            shown = {**entry, "role": role.name} if several else entry
            self._events.write(json.dumps(shown) + "\n")
        master.status.note(entry)
        quiet = entry["level"] == "info" and entry["kind"] in ("node_created", "node_runs", "node_gone")
        if not quiet and deserves_a_line(entry, single=role.max_nodes == 1):
            text = f"{role.name}: {entry['text']}" if several else entry["text"]
            self._console.say(text, level=entry["level"])

    def _note_ruin(self, error: JobError) -> None:
        self._ruin = error
        self._inbox.put_nowait(event.TimePassed())

    def _obey(self, number: int) -> None:
        reason = f"interrupted by {signal_name(number)}"
        self._inbox.put_nowait(event.StopAsked(128 + number, reason, impatient=True))

    # --- what people ask --------------------------------------------------------------------------------------

    async def view(self) -> dict[str, Any]:
        return (await self._see()).job()

    async def nodes(self) -> list[dict[str, Any]]:
        return (await self._see()).nodes()

    async def _see(self) -> JobSeen:
        asked = await asyncio.gather(*(master.ask() for master in self._masters.values()))
        return JobSeen(
            self._spec,
            self._fleets,
            self._platform,
            self._directory,
            masters=dict(zip(self._masters, asked, strict=True)),
            outcomes={role: master.outcome for role, master in self._masters.items()},
        )

    def scale(self, role: str | None, *, num_nodes: int | None, slots: int | None) -> dict[str, Any]:
        ours = self._find_role(role, needed=num_nodes is not None)
        if ours is not None and num_nodes is not None:
            self._check_number(ours, num_nodes)
        if slots is not None and slots < 0:
            raise SpecError("--slots", slots, "it must be 0 or more")
        if slots is not None:
            self._platform.resize(slots)
        if ours is not None and num_nodes is not None:
            self._inbox.put_nowait(event.ScaleAsked(ours.name, num_nodes))
        fleets = [fleet for name, fleet in self._fleets.fleets.items() if ours is None or name == ours.name]
        wanted = sum(fleet.num_wanted for fleet in fleets) if num_nodes is None else num_nodes
        name = None if ours is None else ours.name
        return {"job_id": self._spec.job_id, "role": name, "wanted_nodes": wanted, "slots": slots}

    def _find_role(self, name: str | None, *, needed: bool) -> RoleSpec | None:
        """The role that is meant; None if it is none of several, and not needed."""
        roles = {role.name: role for role in self._spec.roles}
        if name is None and (not needed or len(roles) == 1):
            return self._spec.roles[0] if len(roles) == 1 else None
        if name is None or name not in roles:
            valid = f"one of {', '.join(roles)}" if len(roles) > 1 else next(iter(roles))
            raise SpecError("ROLE", name, f"it must be {valid}")
        return roles[name]

    def _check_number(self, role: RoleSpec, num_nodes: int) -> None:
        if not role.min_nodes <= num_nodes <= role.max_nodes:
            limits = f"from {role.min_nodes} to {role.max_nodes}, as the job says"
            raise SpecError("N", num_nodes, f"it must be a number of nodes {limits}")
        if self._spec.has_several_roles and self._fleets.fleets[role.name].has_ended:
            running = [name for name, fleet in self._fleets.fleets.items() if not fleet.has_ended]
            raise SpecError("ROLE", role.name, f"it has ended; running: {', '.join(running) or 'none'}")

    def stop(self) -> dict[str, Any]:
        self._inbox.put_nowait(event.StopAsked(128 + signal.SIGTERM, "stopped by holdfast stop"))
        return {"job_id": self._spec.job_id, "stopping": True}

    # --- the end ----------------------------------------------------------------------------------------------

    def _conclude(self) -> int:
        if self._events is not None:
            self._events.close()
        verdict = self._fleets.verdict
        if verdict is None:
            return 0
        outcome = self._masters[verdict.role].outcome if verdict.role else None
        if outcome is None:
            self._console.say(verdict.reason, level="warning")
        else:
            reason = f"role {verdict.role}: {outcome.reason}" if self._spec.has_several_roles else outcome.reason
            self._console.say(render_outcome(replace(outcome, reason=reason)), level="error")
        return verdict.exit_code

    @staticmethod
    def _now() -> float:
        return time.monotonic()
