"""How the demo looks: rows that redraw in place on a terminal, plain lines in a pipe."""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TextIO

REDRAW_S = 0.05
PLAIN_LINES_PER_RUN = 8


@dataclass
class Progress:
    """What is known of one training run at this moment."""

    title: str
    total: int
    state: str = "waiting"
    step: int = 0
    loss: float | None = None
    world: int = 0
    restarts: int = 0

    def figures(self) -> str:
        loss = "    -" if self.loss is None else f"{self.loss:5.3f}"
        return f"{self.step:>4}/{self.total}  loss {loss}  world {self.world}  restarts {self.restarts}  {self.state}"


class View(Protocol):
    def say(self, text: str) -> None:
        """Show a line that stays."""

    def update(self, *, at_once: bool = False) -> None:
        """Show how the runs stand; may be called at any rate."""

    def close(self) -> None:
        """Leave the screen as a shell expects it."""


def open_view(runs: Iterable[Progress]) -> View:
    """Rows that redraw where the terminal can move its cursor, else plain lines."""
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveView(list(runs), sys.stdout)
    return PlainView(list(runs), sys.stdout)


class PlainView:
    """A line when a run has gone some way, so that a log stays short."""

    def __init__(self, runs: list[Progress], out: TextIO) -> None:
        self._runs, self._out = runs, out
        self._shown = {run.title: 0 for run in runs}

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def update(self, *, at_once: bool = False) -> None:
        for run in self._runs:
            mark = run.step * PLAIN_LINES_PER_RUN // run.total
            # A restart sets the step back; only ground never covered before is news.
            if mark > self._shown[run.title]:
                self._shown[run.title] = mark
                self.say(f"  {run.title:<12} step {run.figures()}")

    def close(self) -> None:
        self._out.flush()


class LiveView:
    """One row per run at the bottom of the screen; lines that stay scroll above them."""

    def __init__(self, runs: list[Progress], out: TextIO) -> None:
        self._runs, self._out = runs, out
        self._rows_drawn = 0
        self._next_draw_at = 0.0
        out.write("\x1b[?25l")

    def say(self, text: str) -> None:
        self._out.write(f"{self._erase()}{text}\n")
        self._draw()

    def update(self, *, at_once: bool = False) -> None:
        if at_once or monotonic() >= self._next_draw_at:
            self._out.write(self._erase())
            self._draw()

    def close(self) -> None:
        self._out.write("\x1b[?25h")
        self._out.flush()

    def _erase(self) -> str:
        return f"\x1b[{self._rows_drawn}F\x1b[J" if self._rows_drawn else ""

    def _draw(self) -> None:
        # A row that wraps would be two on the screen, and erasing would miss one.
        width = shutil.get_terminal_size().columns - 1
        for run in self._runs:
            row = f"{run.title:<12} {self._bar(run, width=width)} {run.figures()}"
            self._out.write(f"{row[:width]}\n")
        self._out.flush()
        self._rows_drawn = len(self._runs)
        self._next_draw_at = monotonic() + REDRAW_S

    def _bar(self, run: Progress, *, width: int) -> str:
        cells = max(8, min(40, width - 75))
        full = cells * run.step // run.total
        solid, empty = "█░" if "utf" in self._out.encoding.lower() else "#-"
        return solid * full + empty * (cells - full)
