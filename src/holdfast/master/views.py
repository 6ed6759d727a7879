"""The state of a job as JSON: what `/api/job` answers."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.job import Job


def job_view(job: Job, *, elapsed_s: float) -> dict[str, Any]:
    world = job.world
    return {
        "job_id": job.rules.job_id,
        "phase": job.phase,
        "generation": job.generation,
        "restarts": job.restart_count,
        "elapsed_s": elapsed_s,
        "waiting": job.waiting_reason,
        "rules": msgspec.to_builtins(job.rules),
        "world": None if world is None else msgspec.to_builtins(world) | {"size": world.size},
        "nodes": {
            name: {
                "host": member.registered.host,
                "pid": member.registered.pid,
                "pid_space": member.registered.pid_space,
                "num_workers": member.registered.num_workers,
                "status": msgspec.to_builtins(member.status),
            }
            for name, member in sorted(job.members.items())
        },
        "outcome": None if job.outcome is None else msgspec.to_builtins(job.outcome),
    }
