"""Loss and step time over the time on the clock, with everything that was done to the job marked: an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from holdfast.chaos.evidence import Evidence, seconds

WIDTH, HEIGHT, LEFT, RIGHT, GAP = 960, 170, 60, 15, 46
INK, LINE, DEED = "#444", "#0b6e8f", "#b42318"
TOLD = {"incident_opened": "#b54708", "incident_closed": "#1a7f37", "world_formed": "#1a7f37"}
"""Events that are marked, and their colours."""
TOP = 26
MOST_POINTS = 4000
"""More would only make the page slow: of long runs every n-th step is drawn."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    points: Sequence[tuple[float, float]]
    top: int
    end_s: float

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / self.end_s

    def draw(self) -> str:
        most = max((value for _, value in self.points), default=1.0) or 1.0
        bottom = self.top + HEIGHT

        def y(value: float) -> float:
            return bottom - HEIGHT * value / most

        parts = [f'<text x="{LEFT}" y="{self.top - 8}" font-weight="600">{escape(self.title)}</text>']
        for part in (0.0, 0.5, 1.0):
            at = y(most * part)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{most * part:.3g}</text>')
        dots = "".join(f'<circle cx="{self.x(at):.1f}" cy="{y(value):.1f}" r="1.6"/>' for at, value in self.points)
        return "".join(parts) + f'<g fill="{LINE}">{dots}</g>'


def plot(evidence: Evidence, *, begin: float) -> str:
    steps = sorted((record for record in evidence.of("step")), key=lambda record: record["at"])
    first = {record["step"]: record for record in reversed(steps)}
    shown = sorted(first.values(), key=lambda record: record["at"])
    shown = shown[:: len(shown) // MOST_POINTS + 1]
    times = [record["at"] for record in shown] + [action["at"] for action in evidence.actions]
    times += [seconds(event) for event in evidence.events]
    end_s = max(max(times, default=begin) - begin, 1.0)
    loss = Panel("loss", [(r["at"] - begin, r["loss"]) for r in shown], TOP, end_s)
    pace_top = TOP + HEIGHT + GAP
    pace = Panel("step time (ms)", [(r["at"] - begin, r["step_ms"]) for r in shown], pace_top, end_s)
    bottom = pace_top + HEIGHT
    axis = "".join(
        f'<text x="{loss.x(end_s * part):.1f}" y="{bottom + 18}" text-anchor="middle">{end_s * part:.0f} s</text>'
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 28}" width="100%" font-size="12" '
        f'font-family="system-ui, sans-serif" fill="{INK}" role="img" aria-label="loss and step time over time">'
        f"{loss.draw()}{pace.draw()}{_marks(evidence, loss, begin=begin, bottom=bottom)}{axis}</svg>"
        f'<p><span style="color:{DEED}">&#9474;</span> what was done to the job; '
        f'<span style="color:{TOLD["incident_opened"]}">&#9474;</span> an incident begins; '
        f'<span style="color:{TOLD["incident_closed"]}">&#9474;</span> an incident is over, or a world is formed</p>'
    )


def _marks(evidence: Evidence, panel: Panel, *, begin: float, bottom: int) -> str:
    marks = [(action["at"], action["text"], DEED) for action in evidence.actions]
    marks += [
        (seconds(event), event["text"], TOLD[event["kind"]]) for event in evidence.events if event["kind"] in TOLD
    ]
    return "".join(
        f'<line x1="{panel.x(at - begin):.1f}" x2="{panel.x(at - begin):.1f}" y1="{TOP}" y2="{bottom}" '
        f'stroke="{colour}" stroke-width="1.2" stroke-dasharray="4 3"><title>{escape(text)}</title></line>'
        for at, text, colour in marks
    )
