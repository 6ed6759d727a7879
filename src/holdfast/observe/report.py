"""How a job ended, as a person should read it: consequences first, the root cause last."""

from __future__ import annotations

import textwrap

from holdfast.core.faults import classify
from holdfast.core.ids import Outcome, WorkerFailure

MAX_CONSEQUENCES = 8


def render_outcome(outcome: Outcome) -> str:
    """The closing report of a job; empty for one that went well."""
    if outcome.exit_code == 0:
        return ""
    ended_by_somebody = outcome.root_cause is None and outcome.exit_code > 128
    lines = [f"job {'ended' if ended_by_somebody else 'failed'}: {outcome.reason}"]
    echoes = [failure for failure in outcome.consequences if not failure.stopped_by_us]
    if echoes:
        lines.append("consequences:")
        lines += [f"  {_name(failure)}: {classify(failure).evidence}" for failure in echoes[:MAX_CONSEQUENCES]]
        if len(echoes) > MAX_CONSEQUENCES:
            lines.append(f"  and {len(echoes) - MAX_CONSEQUENCES} more")
    if outcome.root_cause is not None:
        root = outcome.root_cause
        lines.append(f"root cause: {_name(root)}, {classify(root).evidence}")
        text = root.error.rstrip() or "it left no traceback; its own output may say more"
        lines.append(textwrap.indent(text, "  | ", lambda _: True))
    return "\n".join(lines)


def _name(failure: WorkerFailure) -> str:
    return f"rank {failure.rank} on {failure.node} (local rank {failure.local_rank}, pid {failure.pid})"
