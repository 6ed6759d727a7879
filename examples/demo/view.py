"""How the demo looks: rows that redraw in place on a terminal, plain lines in a pipe."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import TextIO

REDRAW_S = 0.05
PLAIN_LINES_PER_RUN = 4


@dataclass
class Progress:
    """What is known of one training run at this moment."""

    title: str
    total: int
    state: str = "waiting"
    step: int = 0
    loss: float | None = None

    def note_step(self, step: int, *, loss: float | None) -> None:
        if self.step == 0:
            self.state = "training"
        self.step, self.loss = step, self.loss if loss is None else loss

    def figures(self) -> str:
        return f"{self.step:>4}/{self.total}  loss {'    -' if self.loss is None else f'{self.loss:5.3f}'}"


def open_view(runs: Iterable[Progress], out: TextIO) -> "View":
    """Rows that redraw where the terminal can move its cursor, else plain lines."""
    is_terminal = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return (LiveView if is_terminal else View)(list(runs), out)


class View:
    """Plain lines: one when a run has gone some way, so that a log stays short."""

    def __init__(self, runs: list[Progress], out: TextIO) -> None:
        self._runs, self._out = runs, out
        self._shown = {run.title: 0 for run in runs}

    def say(self, text: str) -> None:
        """Show a line that stays."""
        print(text, file=self._out, flush=True)

    def update(self) -> None:
        """Show how the runs stand; may be called at any rate."""
        for run in self._runs:
            mark = run.step * PLAIN_LINES_PER_RUN // run.total
            if mark > self._shown[run.title]:
                self._shown[run.title] = mark
                self.say(f"  {run.title:<12} step {run.figures()}")

    def close(self) -> None:
        """Leave the screen as a shell expects it."""
        self._out.flush()


class LiveView(View):
    """One row per run at the bottom of the screen; lines that stay scroll above them."""

    def __init__(self, runs: list[Progress], out: TextIO) -> None:
        super().__init__(runs, out)
        self._rows_drawn = 0
        self._next_draw_at = 0.0
        out.write("\x1b[?25l")

    def say(self, text: str) -> None:
        self._draw(above=f"{text}\n")

    def update(self) -> None:
        if monotonic() >= self._next_draw_at:
            self._draw()

    def close(self) -> None:
        self._draw()
        self._out.write("\x1b[?25h")
        self._out.flush()

    def _draw(self, *, above: str = "") -> None:
        erase = f"\x1b[{self._rows_drawn}F\x1b[J" if self._rows_drawn else ""
        # A row that wraps would be two on the screen, and erasing would miss one.
        width = shutil.get_terminal_size().columns - 1
        rows = [f"{run.title:<12} {self._bar(run, width=width)} {run.figures()}  {run.state}" for run in self._runs]
        self._out.write(erase + above + "".join(f"{row[:width]}\n" for row in rows))
        self._out.flush()
        self._rows_drawn = len(rows)
        self._next_draw_at = monotonic() + REDRAW_S

    def _bar(self, run: Progress, *, width: int) -> str:
        cells = max(8, min(40, width - 55))
        full = cells * run.step // run.total
        solid, empty = "█░" if "utf" in self._out.encoding.lower() else "#-"
        return solid * full + empty * (cells - full)
