"""The flags of a job, resolved: flags win over variables, variables over defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.errors import SpecError
from holdfast.spec.flags import FLAGS, Flag


@dataclass(frozen=True, slots=True)
class Setting:
    """A value with where it came from; None where nobody gave one and there is no default."""

    value: str | None
    source: str

    def whole(self, least: int, most: int | None = None) -> int:
        return int(self._number(int, least, most))

    def seconds(self) -> float:
        return self._number(float, 0, None)

    def _number(self, kind: Callable[[str], float], least: int, most: int | None) -> float:
        what = "a whole number" if kind is int else "a number"
        limits = f"{least} or more" if most is None else f"from {least} to {most}"
        try:
            number = kind(self.value or "")
        except ValueError:
            raise SpecError(self.source, self.value, f"it must be {what}, {limits}") from None
        if not least <= number or (most is not None and number > most):
            raise SpecError(self.source, self.value, f"it must be {what}, {limits}")
        return number


class Settings:
    """All flags, resolved."""

    def __init__(self, given: argparse.Namespace, env: Mapping[str, str]) -> None:
        self._settings = {flag.dest: _resolve(flag, getattr(given, flag.dest), env) for flag in FLAGS}

    def __getitem__(self, name: str) -> Setting:
        return self._settings[name]

    def text(self, name: str) -> str:
        return self[name].value or ""

    def on(self, name: str) -> bool:
        return self[name].value == "1"

    def given(self, name: str) -> bool:
        return self[name].value is not None and self[name].source != "default"


def _resolve(flag: Flag, given: str | bool | None, env: Mapping[str, str]) -> Setting:
    if given is not None:
        value, source = ("1" if given is True else str(given)), flag.name
    elif flag.variable and env.get(flag.env):
        value, source = env[flag.env], flag.env
        if flag.switch:
            value = "1" if Setting(value, source).whole(0) else "0"
    else:
        return Setting(flag.default or None, "default")
    if flag.choices and value not in flag.choices:
        raise SpecError(source, value, f"it must be one of {', '.join(flag.choices)}")
    return Setting(value, source)
