"""How a job ended, as a person should read it: consequences first, the root cause last."""

from __future__ import annotations

import textwrap

from holdfast.core.faults import classify
from holdfast.core.ids import Outcome, WorkerFailure

MAX_CONSEQUENCES = 8


def render_outcome(outcome: Outcome) -> str:
    """The closing report of a failed job; empty for one that went well or that somebody ended."""
    if outcome.exit_code == 0 or (outcome.root_cause is None and outcome.exit_code > 128):
        return ""
    lines = [f"job failed: {outcome.reason}"]
    echoes = [failure for failure in outcome.consequences if not failure.stopped_by_us]
    if echoes:
        lines.append("consequences:")
        lines += [f"  {_name(failure)}: {classify(failure).evidence}" for failure in echoes[:MAX_CONSEQUENCES]]
        if len(echoes) > MAX_CONSEQUENCES:
            lines.append(f"  and {len(echoes) - MAX_CONSEQUENCES} more")
    if outcome.root_cause is not None:
        root = outcome.root_cause
        lines.append(f"root cause: {_name(root)}, {classify(root).evidence}")
        if root.error:
            lines.append(textwrap.indent(root.error.rstrip(), "  | "))
    return "\n".join(lines)


def _name(failure: WorkerFailure) -> str:
    return f"rank {failure.rank} on {failure.node} (local rank {failure.local_rank}, pid {failure.pid})"
