"""Plays a scenario: each command goes to the core, and everything it answers is written below the command.

`rules` sets the job's rules. `t=SECONDS` is when a command is given; nodes are named before it.

    joins · beats · runs · stops · succeeds · leaves · has left · dies     what a node says, or what is known of it
    fails rank N (exit code C)                                             its worker ended, and it stops the others
    time passes                                                            `TimePassed`, with those who are silent
    master restarts                                                        the journal is replayed by a new master
    end requested                                                          somebody wants the job to end
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from holdfast.core import job
from holdfast.core.ids import Address, Finish, NodePhase, NodeStatus, Order, Run, Stop, WorkerFailure
from holdfast.spec.job import JobRules

COMMAND = re.compile(r"t=(?P<at>[\d.]+)\s+(?:(?P<nodes>[a-z](?:,[a-z])*) )?(?P<words>.+)")
FAILS = re.compile(r"fails rank (\d+) \(exit code (\d+)\)")
PHASES = {
    "runs": NodePhase.RUNNING,
    "stops": NodePhase.READY,
    "succeeds": NodePhase.SUCCEEDED,
    "leaves": NodePhase.LEAVING,
    "has left": NodePhase.LEFT,
}


class Play:
    """A job, and the last status of each node."""

    def __init__(self, rules: JobRules) -> None:
        self.rules = rules
        self.job = job.Job(rules, now=0.0)
        self.journal: list[tuple[float, job.Event]] = []
        self.statuses: dict[str, NodeStatus] = {}
        self.seqs: dict[str, int] = {}

    def command(self, at: float, node: str, words: str) -> Iterator[str]:
        """What the core answers to one command of one node."""
        event = self._event(at, node, words)
        beat = isinstance(event, job.StatusReported) and self.job.is_old_news(event)
        if not beat:
            self.journal.append((at, event))
        for action in self.job.handle(event, now=at):
            yield answer(action)

    def _event(self, at: float, node: str, words: str) -> job.Event:
        match words:
            case "time passes":
                return job.TimePassed(self.job.silent(now=at))
            case "end requested":
                return job.EndRequested(143, "somebody asked for the end")
            case "master restarts":
                self.job = job.Job(self.rules, now=0.0)
                for then, event in self.journal:
                    self.job.handle(event, now=then)
                return job.MasterStarted()
            case "joins":
                self.seqs[node] = 0
                self.statuses[node] = NodeStatus(NodePhase.READY, 0)
                limits = (self.rules.min_nodes, self.rules.max_nodes)
                store = Address(node, 29500)
                status = self.statuses[node]
                return job.NodeRegistered(node, f"{node}-{at:g}", node, 7, 2, store, None, "job", limits, status)
            case "dies":
                return job.AgentDied(node, self.job.members[node].nonce, "its agent (pid 7) is dead")
        return self._report(node, self._next_status(node, words))

    def _next_status(self, node: str, words: str) -> NodeStatus:
        old, generation = self.statuses[node], self.job.generation
        if failed := FAILS.fullmatch(words):
            rank, code = int(failed[1]), int(failed[2])
            failure = WorkerFailure(rank, rank % 2, node, 100 + rank, exit_code=code)
            return replace(old, phase=NodePhase.DRAINING, failures=(failure,), pids=())
        if words == "beats":
            return old
        phase = PHASES[words]
        kept = old.failures if old.generation == generation else ()
        pids = (101, 102) if phase is NodePhase.RUNNING else ()
        reason = f"SIGTERM received on {node}" if phase in (NodePhase.LEAVING, NodePhase.LEFT) else ""
        return NodeStatus(phase, generation, kept, pids, reason)

    def _report(self, node: str, status: NodeStatus) -> job.StatusReported:
        self.statuses[node] = status
        self.seqs[node] += 1
        member = self.job.members.get(node)
        nonce = member.nonce if member is not None else "gone"
        return job.StatusReported(node, nonce, self.seqs[node], status)


def answer(action: job.Action) -> str:
    match action:
        case job.Accept():
            return f"-> {action.node}: accepted"
        case job.Refuse():
            return f"-> {action.node}: refused, {action.reason}"
        case job.Acknowledge():
            return f"-> {action.node}: heard"
        case job.Tell():
            return f"-> {action.node}: {order_text(action.order, action.node)}"
        case job.Tale():
            return f"| {action.record}"


def order_text(order: Order, node: str) -> str:
    match order:
        case Run(world=world):
            placement = world.placement_of(node)
            assert placement is not None, "only its nodes run a world"
            last = placement.first_rank + placement.num_workers - 1
            return f"run generation {world.generation}, ranks {placement.first_rank}-{last} of {world.size}"
        case Stop():
            return f"stop generation {order.generation}: {order.reason}"
        case Finish():
            return f"finish with {order.outcome.exit_code}: {order.outcome.reason}"


def play(text: str) -> str:
    """The scenario again, with the answers that the core gives now."""
    lines: list[str] = []
    stage: Play | None = None
    for line in text.splitlines():
        if line.startswith("rules "):
            pairs = dict(pair.split("=") for pair in line.split()[1:])
            values = {key: int(value) if value.isdecimal() else float(value) for key, value in pairs.items()}
            stage = Play(JobRules(job_id="job", **values))
            lines.append(line)
        elif command := COMMAND.fullmatch(line):
            assert stage is not None, "the rules come first"
            lines.append(line)
            for node in (command["nodes"] or "").split(","):
                answers = stage.command(float(command["at"]), node, command["words"])
                lines += [f"        {each}" for each in answers]
        elif not line.startswith("        "):
            lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(play(Path(name).read_text()))
