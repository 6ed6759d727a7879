"""TaskD's worker: here the agent of the node watches every worker, so there is nothing left to start."""

from __future__ import annotations

from holdfast.errors import SpecError
from holdfast.taskd.convention import answers, not_before

FRAMEWORKS = ("pt", "ms")

_ranks: list[int] = []
"""The rank of this process, once it is known."""


@answers
def init_taskd_worker(rank_id: int, upper_limit_of_disk_in_mb: int = 5000, framework: str = "pt") -> None:
    _ranks.clear()
    for name, value in (("rank_id", rank_id), ("upper_limit_of_disk_in_mb", upper_limit_of_disk_in_mb)):
        if type(value) is not int or value < 0:
            raise SpecError(name, value, "it must be a whole number, 0 or more")
    if framework not in FRAMEWORKS:
        raise SpecError("framework", framework, f"it must be one of {', '.join(FRAMEWORKS)}")
    _ranks.append(rank_id)


@answers
def start_taskd_worker() -> None:
    if not _ranks:
        raise not_before("init_taskd_worker")


@answers
def destroy_taskd_worker() -> None:
    if not _ranks:
        raise not_before("init_taskd_worker")
    _ranks.clear()
