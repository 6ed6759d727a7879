"""The kinds of values in a job file: how each is read, what is valid, and how a schema says so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.errors import SpecError
from holdfast.spec.load import parse_hang_limits
from holdfast.spec.rules import parse_nodes, parse_window
from holdfast.spec.settings import Setting
from holdfast.spec.strategy import Strategy, parse_strategies

Written: TypeAlias = str | tuple[str, ...] | dict[str, str]
"""A value as somebody wrote it: a text, a list of texts, or texts by name."""

SCALAR = {"type": ["string", "number", "boolean"]}
NUMBER: dict[str, Any] = {"type": ["number", "string"]}
SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1 << shift for letter, shift in (("K", 10), ("M", 20), ("G", 30), ("T", 40))
}
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    parse: Callable[[Written, str], Any]
    """The value, from what was written and where; raises an error that says both."""
    schema: Mapping[str, Any]
    takes: tuple[type, ...] = (str,)
    """What it can be written as: a text, a list (tuple) or names with values (dict)."""
    join: str = ""
    """Where a list may stand for a text: what separates its items."""


def scalar(parse: Callable[[Setting], Any], schema: Mapping[str, Any]) -> Kind:
    return Kind(parse=lambda written, source: parse(Setting(_text(written), source)), schema=schema)


def whole(least: int, most: int) -> Kind:
    schema = {"type": ["integer", "string"], "minimum": least, "maximum": most}
    return scalar(lambda setting: setting.whole(least, most), schema)


def choice(*names: str) -> Kind:
    def parse(setting: Setting) -> str:
        if setting.value not in names:
            raise SpecError(setting.source, setting.value, f"it must be one of {', '.join(names)}")
        return setting.value

    return scalar(parse, {"enum": list(names)})


def text(pattern: str, valid: str) -> Kind:
    def parse(setting: Setting) -> str:
        if not re.fullmatch(pattern, setting.value or ""):
            raise SpecError(setting.source, setting.value, valid)
        return setting.value or ""

    return scalar(parse, {"type": ["string", "integer"], "pattern": f"^(?:{pattern})$"})


def _text(written: Written) -> str:
    assert isinstance(written, str), "who reads it has seen to that"
    return written


def _seconds(setting: Setting) -> float:
    seconds = setting.seconds()
    if not 0 < seconds < float("inf"):
        raise SpecError(setting.source, setting.value, "it must be a number of seconds above 0")
    return seconds


def _span(setting: Setting) -> tuple[float, float]:
    first, colon, most = (setting.value or "").partition(":")
    low = Setting(first, setting.source).seconds()
    high = Setting(most, setting.source).seconds() if colon else low
    if not low <= high < float("inf"):
        raise SpecError(setting.source, setting.value, "it must be FIRST:MOST in seconds with FIRST <= MOST")
    return low, high


def parse_cpu(setting: Setting) -> float:
    written = setting.value or ""
    number = written.removesuffix("m")
    try:
        cores = float(number) / (1000 if written.endswith("m") else 1)
    except ValueError:
        cores = 0.0
    if not 0 < cores < float("inf"):
        raise SpecError(setting.source, written, "it must be a number of cores above 0, as 2, 0.5 or 500m")
    return cores


def parse_bytes(setting: Setting) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*?)B?", setting.value or "")
    factor = SIZES.get(found[2]) if found else None
    if found is None or factor is None or float(found[1]) <= 0:
        units = ", ".join(unit for unit in SIZES if unit)
        raise SpecError(setting.source, setting.value, f"it must be bytes above 0, as 4Gi; units: {units}")
    return int(float(found[1]) * factor)


def render_bytes(number: int) -> str:
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if number % SIZES[unit] == 0:
            return f"{number // SIZES[unit]}{unit}"
    return str(number)


def _parse_factor(setting: Setting) -> float:
    factor = setting.seconds()
    if not 1 < factor <= 16:
        raise SpecError(setting.source, setting.value, "it must be a number above 1 and up to 16")
    return factor


def _parse_command(written: Written, source: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(written)) if isinstance(written, str) else tuple(written)
    except ValueError as error:
        raise SpecError(source, written, f"its quotes do not fit: {error}") from None
    if not words or not words[0]:
        raise SpecError(source, written, "it must name a script or program, as in [train.py, --epochs, 5]")
    return words


def _parse_env(written: Written, source: str) -> dict[str, str]:
    assert isinstance(written, dict), "who reads it has seen to that"
    for name in written:
        if not VARIABLE.fullmatch(name):
            raise SpecError(source, name, "the name of a variable has letters, digits and _, and begins with no digit")
    return written


ON = "on"
SWITCH = (ON, "off")
ON_OFF = choice(*SWITCH)
NODES = scalar(parse_nodes, {"type": ["integer", "string"], "pattern": r"^[0-9]+(?::[0-9]+)?$"})
COUNT_OR_DEVICES = text(r"[1-9][0-9]*|auto|cpu|gpu|xpu", "it must be a number of 1 or more, or auto, cpu, gpu, xpu")
CPU = scalar(parse_cpu, NUMBER)
BYTES = scalar(parse_bytes, {"type": ["string", "integer"], "pattern": r"^[0-9.]+\s*(?:[kMGT]|[KMGT]i)?B?$"})
SECONDS = scalar(_seconds, NUMBER)
WINDOW = scalar(parse_window, {"type": ["number", "string"], "pattern": r"^(?:off|[0-9.]+)$"})
SPAN = scalar(_span, {"type": ["string", "number"], "pattern": r"^[0-9.]+(?::[0-9.]+)?$"})
HANG = scalar(parse_hang_limits, {"type": "string", "pattern": r"^(?:off|[0-9.]+:[0-9.]+)$"})
FACTOR = scalar(_parse_factor, {**NUMBER, "exclusiveMinimum": 1, "maximum": 16})
PATH = text(r"[^\0]+", "it must name a file or directory")
NAME = text(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "it must be at most 63 small letters, digits and dashes")
COMMAND = Kind(
    parse=_parse_command, takes=(str, tuple), schema={"type": ["string", "array"], "items": SCALAR, "minItems": 1}
)
VARIABLES = Kind(parse=_parse_env, takes=(dict,), schema={"type": "object", "additionalProperties": SCALAR})
STRATEGIES = Kind(
    parse=lambda written, source: parse_strategies(_text(written), source=source),
    takes=(str, tuple),
    join=",",
    schema={"anyOf": [{"type": "string"}, {"type": "array", "items": {"enum": [str(each) for each in Strategy]}}]},
)
