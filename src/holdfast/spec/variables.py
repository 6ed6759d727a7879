"""Settings read from the environment: each value with the variable it came from, and the one it overruled."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import SpecError

T = TypeVar("T")

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Variable:
    """A setting; `theirs` is empty where only we have it, `default` is None where it has to be set."""

    ours: str
    theirs: str
    default: str | None
    meaning: str

    @property
    def names(self) -> str:
        return f"{self.ours} (or {self.theirs})" if self.theirs else self.ours


@dataclass(frozen=True, slots=True)
class Found:
    """A value as it was written, the variable it came from, and what that variable overruled."""

    value: str
    source: str
    overruled: str = ""


class Reader:
    """Reads and checks settings of one table; every error names the variable that was really set."""

    def __init__(self, table: Mapping[str, Variable], env: Mapping[str, str]) -> None:
        self._table = table
        self.env = env

    def find(self, name: str) -> Found:
        variable = self._table[name]
        ours, theirs = self.env.get(variable.ours), self.env.get(variable.theirs)
        if ours:
            differs = theirs and theirs != ours
            return Found(ours, variable.ours, f"{variable.theirs}={theirs}" if differs else "")
        if theirs:
            return Found(theirs, variable.theirs)
        if variable.default is None:
            raise SpecError(variable.names, None, f"it must be set: {variable.meaning}")
        return Found(variable.default, DEFAULT)

    def is_set(self, name: str) -> bool:
        variable = self._table[name]
        return bool(self.env.get(variable.ours) or self.env.get(variable.theirs))

    def notes(self) -> list[str]:
        """What a person should know who has set a variable twice."""
        found = [self.find(name) for name in self._table if self.is_set(name)]
        return [f"{each.source}={each.value} counts, not {each.overruled}" for each in found if each.overruled]

    def refuse(self, name: str, valid: str) -> SpecError:
        found = self.find(name)
        source = self._table[name].ours if found.source is DEFAULT else found.source
        return SpecError(source, found.value, valid)

    # --- kinds of values --------------------------------------------------------------------------------------

    def text(self, name: str) -> str:
        return self.find(name).value

    def whole(self, name: str, least: int, most: int) -> int:
        value = self.text(name)
        if not value.strip().isdecimal() or not least <= int(value) <= most:
            raise self.refuse(name, f"it must be a whole number from {least} to {most}")
        return int(value)

    def seconds(self, name: str, *, may_be_0: bool = False) -> float:
        number = self._number(name)
        if not (number > 0 or (number == 0 and may_be_0)) or math.isinf(number):
            raise self.refuse(name, f"it must be a number of seconds, {'0 or more' if may_be_0 else 'above 0'}")
        return number

    def timeout(self, name: str) -> float:
        """Seconds; a negative number stands for infinity."""
        number = self._number(name)
        if number == 0 or math.isnan(number):
            raise self.refuse(name, "it must be a number of seconds above 0, or negative for no limit")
        return number if number > 0 else math.inf

    def choice(self, name: str, choices: Mapping[str, T]) -> T:
        value = self.text(name)
        if value not in choices:
            raise self.refuse(name, f"it must be one of {', '.join(choices)}")
        return choices[value]

    def address(self, name: str) -> str:
        try:
            address = ipaddress.ip_address(self.text(name))
        except ValueError:
            raise self.refuse(name, "it must be an IPv4 or IPv6 address") from None
        if address.version == 6 and address.is_link_local:
            raise self.refuse(name, "a link-local address is not enough: it means something on one interface only")
        if address.is_unspecified:
            raise self.refuse(name, "it must be an address that others can reach, not one that stands for all of them")
        return str(address)

    def make_directory(self, name: str) -> None:
        try:
            os.makedirs(self.text(name), exist_ok=True)
        except OSError as error:
            raise self.refuse(name, f"it cannot be made: {error.strerror}") from error

    def _number(self, name: str) -> float:
        try:
            return float(self.text(name))
        except ValueError:
            return math.nan
