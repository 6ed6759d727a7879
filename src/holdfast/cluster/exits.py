"""How the script of this process ends: the interpreter tells nobody the code that it exits with."""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, NoReturn

WAYS_OUT = ((sys, "exit"), (builtins, "exit"), (builtins, "quit"))


class ExitWatch:
    """Knows afterwards, in the functions that `atexit` calls, whether the script ended well.

    A script comes to its end, raises, or calls one of the ways out. What it gives to a `SystemExit` that it raises by
    hand cannot be seen: in its outermost lines, as in `raise SystemExit(main())`, that is taken for a good end, and
    anywhere else for a bad one.
    """

    def __init__(self) -> None:
        frames = list(_callers(sys._current_frames()[threading.main_thread().ident or 0]))  # noqa: SLF001  the documented way
        # With `python -m`, the interpreter's own are around those of the script.
        self._outermost = next((f for f in reversed(frames) if f.f_globals["__name__"] == "__main__"), frames[-1])
        self._given: object = None
        """What the way out was called with that was taken last."""
        self._left: list[tuple[FrameType, int]] = []
        """Who was being run then, and where: whoever went on from there has caught it."""
        for module, name in WAYS_OUT:
            if hasattr(module, name):
                self._watch_calls(module, name)

    def ended_well(self) -> bool:
        last = _last_operation(self._outermost)
        if last.startswith("RETURN"):
            return True
        if self._has_raised():
            return False
        if self._left and all(_was_left(frame, at) for frame, at in self._left):
            # Of anything else but a number, Python makes a 1.
            return self._given is None or self._given == 0
        return last == "RAISE_VARARGS"

    def exception(self) -> BaseException | None:
        """What the script has raised, if that was its end."""
        return sys.last_value if self._has_raised() else None

    def exit_code(self) -> int:
        """What the interpreter exits with after a bad end, as far as that can be seen."""
        return self._given if isinstance(self._given, int) and self._given and not self._has_raised() else 1

    def _has_raised(self) -> bool:
        """Whether the interpreter has shown an exception that came out of the script."""
        trace = getattr(sys, "last_traceback", None)
        while trace is not None and trace.tb_frame is not self._outermost:
            trace = trace.tb_next
        return trace is not None

    def _watch_calls(self, module: ModuleType, name: str) -> None:
        leave: Callable[..., NoReturn] = getattr(module, name)

        @functools.wraps(leave)
        def note(code: Any = None, /) -> NoReturn:  # noqa: ANN401  whatever the script gives
            if threading.current_thread() is threading.main_thread():
                self._given = code
                self._left = [(frame, frame.f_lasti) for frame in _callers(sys._getframe(1))]  # noqa: SLF001
            leave(code)

        setattr(module, name, note)
        script = vars(sys.modules["__main__"])
        # As after `from sys import exit`.
        script.update({known: note for known, value in script.items() if value is leave})


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _last_operation(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]


def _was_left(frame: FrameType, at: int) -> bool:
    """Whether what came out of a call there came out of the whole frame, be it that it was caught and raised again."""
    return frame.f_lasti == at or _last_operation(frame) in ("RAISE_VARARGS", "RERAISE")
