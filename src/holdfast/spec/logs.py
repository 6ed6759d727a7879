"""Which output of the workers is kept, and which is shown."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.errors import SpecError
from holdfast.spec.job import LogSpec
from holdfast.spec.settings import Setting, Settings


def find_logs(settings: Settings, env: Mapping[str, str], num_workers: int) -> LogSpec:
    directory = settings["log_dir"]
    redirects, tee = _streams(settings["redirects"], num_workers), _streams(settings["tee"], num_workers)
    if directory.value is not None:
        if os.path.exists(directory.value) and not os.path.isdir(directory.value):
            raise SpecError(directory.source, directory.value, "it must be a directory")
        if not settings.given("redirects") and not settings.given("tee"):
            tee = dict.fromkeys(range(num_workers), 3)
    shown = settings["local_ranks_filter"]
    return LogSpec(
        log_dir=directory.value,
        run_dir=settings["run_dir"].value,
        redirects=redirects,
        tee=tee,
        shown_local_ranks=_local_ranks(shown) if shown.value else None,
        stdout_filters=_texts(settings["duplicate_stdout_filters"].value),
        stderr_filters=_texts(settings["duplicate_stderr_filters"].value),
        prefix_template=env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
    )


def _streams(setting: Setting, num_workers: int) -> dict[int, int]:
    value = setting.value or "0"
    if value in ("0", "1", "2", "3"):
        return dict.fromkeys(range(num_workers), int(value))
    streams: dict[int, int] = {}
    for item in value.split(","):
        rank, _, number = item.partition(":")
        if not rank.isdecimal() or number not in ("0", "1", "2", "3"):
            raise SpecError(setting.source, value, "it must be 0, 1, 2, 3 or a list by local rank such as 0:1,1:3")
        streams[int(rank)] = int(number)
    return streams


def _local_ranks(setting: Setting) -> tuple[int, ...]:
    items = (setting.value or "").split(",")
    if not all(item.strip().isdecimal() for item in items):
        raise SpecError(setting.source, setting.value, "it must be local ranks separated by commas, as in 0,2")
    return tuple(int(item) for item in items)


def _texts(value: str | None) -> tuple[str, ...]:
    if not value:
        return ()
    return tuple(part.replace("\0", ",") for part in value.replace(",,", "\0").split(","))
