"""Playing an experiment, and judging it again from its raw evidence."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from recompute import confirm

from holdfast.chaos.evidence import seconds
from holdfast.chaos.experiment_file import load_experiment
from holdfast.chaos.play import Played, play
from holdfast.chaos.report import write_report

TO_THE_END = ("fault-node", "straggler-node")
"""Their negative controls are compared with the undisturbed run too: they belong into the process that has made it."""
MARKED = ("incident_opened", "incident_closed", "world_formed")


class Story(list[str]):
    def show(self, at: float, text: str) -> None:
        self.append(f"{at:8.2f} {text}")


def expect_as_it_must(name: str, directory: Path, *, negative: bool) -> None:
    experiment = load_experiment(name, size="small")
    if experiment.root and os.geteuid() != 0:
        pytest.skip(f"it needs root: {experiment.root}; {experiment.instead} is there without")
    story = Story()
    result = play(experiment, negative=negative, show=story.show)
    expect_report(result, directory, story)
    assert result.verdict == ("FAIL" if negative else "PASS")


def expect_report(result: Played, directory: Path, story: Story) -> None:
    data, page = write_report(result, directory, size="small")
    told = "\n".join([*map(str, result.findings), *story, result.output])
    assert confirm(json.loads(data.read_text())) == [], told
    expect_page(page.read_text(), json.loads(data.read_text()))
    assert result.passed, told


def expect_page(page: str, report: dict) -> None:
    raw = report["evidence"]
    steps = {record["step"] for record in raw["records"] if record["what"] == "step"}
    assert report["verdict"] in page
    assert page.count("<circle") >= 2 * len(steps) > 0
    assert "<script" not in page
    # Not the text, which may be anything that a job has printed.
    markup = "".join(re.findall(r"<style>.*?</style>|<[^>]*>", page, re.DOTALL))
    assert re.findall(r"""(?:src|href)=|url\(|@import""", markup) == [], "nothing comes from elsewhere"
    wanted = [(deed["text"], deed["at"]) for deed in raw["actions"]]
    wanted += [(event["text"], seconds(event)) for event in raw["events"] if event["kind"] in MARKED]
    found = sorted(marks(page))
    assert [text for text, _ in found] == [text for text, _ in sorted(wanted)]
    in_time = sorted((at, x) for (_, at), (_, x) in zip(sorted(wanted), found, strict=True))
    assert [x for _, x in in_time] == sorted(x for _, x in found), "what came later is further right"


def marks(page: str) -> list[tuple[str, float]]:
    """The lines in the plot that have a title, and where they are."""
    plot = ElementTree.fromstring(re.findall(r"<svg.*?</svg>", page, re.DOTALL)[0])
    lines = [line for line in plot.iter("{http://www.w3.org/2000/svg}line") if len(line)]
    found = [(line[0].text or "", float(line.attrib["x1"])) for line in lines]
    assert all(60 <= x <= 945 for _, x in found), "within the axes"
    return found
