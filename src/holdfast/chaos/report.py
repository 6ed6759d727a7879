"""The report of an experiment: all that was seen and the verdict as JSON, and a page for people."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from holdfast.chaos.evidence import seconds
from holdfast.chaos.experiment import Expectation
from holdfast.chaos.play import Played
from holdfast.chaos.plot import plot
from holdfast.errors import JobError

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: 12px; }
.met { color: #1a7f37; } .missed { color: #b42318; } .deed { color: #b42318; font-weight: 600; }
"""


def write_report(played: Played, directory: Path, *, size: str) -> tuple[Path, Path]:
    """Where the JSON and the page are."""
    name = f"{played.experiment.name}{'-negative' if played.negative else ''}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        data, page = directory / f"{name}.json", directory / f"{name}.html"
        data.write_text(json.dumps(as_data(played, size=size), indent=1) + "\n")
        page.write_text(as_page(played))
    except OSError as error:
        raise JobError(f"--report: {error.filename} cannot be written: {error.strerror}") from error
    return data, page


def as_data(played: Played, *, size: str) -> dict[str, Any]:
    chosen = played.experiment.negated() if played.negative else played.experiment
    return {
        "experiment": played.experiment.name,
        "says": played.experiment.says,
        "size": size,
        "negative": played.experiment.negative.says if played.negative else None,
        "must_fail": list(played.experiment.negative.fails) if played.negative else [],
        "job": {path: entry.written for path, entry in chosen.given.job.items()},
        "when": [{"after": str(action.after), "act": str(action.act)} for action in chosen.when],
        "then": [_stated(each) for each in chosen.then],
        "findings": [asdict(finding) for finding in played.findings],
        "verdict": played.verdict,
        "as_it_must": played.passed,
        "took_s": round(played.took_s, 3),
        "evidence": asdict(played.evidence),
        "output": played.output,
    }


def _stated(expectation: Expectation) -> dict[str, Any]:
    return {expectation.name: expectation.value}


def as_page(played: Played) -> str:
    """One file without anything from elsewhere."""
    name, evidence = played.experiment.name, played.evidence
    title = f"{name}: {played.verdict}" + (" (negative control)" if played.negative else "")
    begin = min(
        [seconds(event) for event in evidence.events] + [action["at"] for action in evidence.actions], default=0.0
    )
    rows = "".join(
        f"<tr><td>{escape(finding.expected)}</td><td>{escape(finding.observed)}</td>"
        f'<td class="{"met" if finding.met else "missed"}">{"met" if finding.met else "not met"}</td></tr>'
        for finding in played.findings
    )
    moments = [(seconds(event), event["text"], "") for event in evidence.events]
    moments += [(action["at"], action["text"], "deed") for action in evidence.actions]
    story = "".join(
        f'<tr class="{kind}"><td>{at - begin:.2f} s</td><td>{escape(text)}</td></tr>'
        for at, text, kind in sorted(moments, key=lambda moment: moment[0])
    )
    says = escape(played.experiment.says)
    if played.negative:
        says += f" <b>Negative control:</b> {escape(played.experiment.negative.says)}; it must fail."
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{says}</p>{plot(evidence, begin=begin)}"
        f"<h2>Expected and observed</h2><table><tr><th>expected</th><th>observed</th><th></th></tr>{rows}</table>"
        f"<h2>What happened</h2><table>{story}</table>"
        f"<h2>Output</h2><pre>{escape(played.output)}</pre></html>\n"
    )
