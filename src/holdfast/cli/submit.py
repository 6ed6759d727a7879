"""`holdfast submit`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from holdfast.agent.console import plain_error
from holdfast.agent.guard import run_guarded
from holdfast.agent.lifeline import Lifeline
from holdfast.cli.explain import render_found
from holdfast.spec.submit import SubmitSpec, load_submit
from holdfast.submission.directory import JobDirectory
from holdfast.submission.means import Plan, clean_up_after

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def submit(argv: Sequence[str]) -> int:
    spec = load_submit(argv)
    if spec.dry_run and spec.json:
        sys.stdout.write(json.dumps(_described(spec), indent=2) + "\n")
        return 0
    for note in spec.notes:
        plain_error(note)
    if spec.dry_run:
        sys.stdout.write(render_found(spec.found))
        return 0
    return _run(spec)


def _run(spec: SubmitSpec) -> int:
    plan = Plan.make(spec)
    for note in plan.notes:
        plain_error(note)
    directory = JobDirectory.make(spec)
    if directory.kept:
        plain_error(f"job {spec.job_id}: its logs are in {directory.path}")

    def submitter(guard: int, _lifeline: Lifeline) -> int:
        from holdfast.submission.main import run_submission

        return run_submission(spec, plan, directory, guard=guard)

    try:
        return run_guarded(submitter, signals=SIGNALS, marker=secrets.token_hex(8))
    finally:
        clean_up_after(plan, guard=os.getpid())
        directory.close()


def _described(spec: SubmitSpec) -> dict[str, object]:
    runs = {
        role.name: ["holdfast", "run", *role.run_flags, *role.command.how, *role.command.words] for role in spec.roles
    }
    return {
        "fields": {name: asdict(each) for name, each in spec.found.items()},
        "notes": list(spec.notes),
        "runs": runs if spec.has_several_roles else runs[spec.roles[0].name],
    }
