"""Every experiment at small size, and the negative controls that come to an end."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playing import TO_THE_END, Story, expect_as_it_must, expect_page, expect_report
from recompute import confirm

from holdfast.chaos.experiment_file import names
from holdfast.chaos.soak import SoakPlan, soak_job
from holdfast.cli.main import main

pytestmark = pytest.mark.timeout(600)

BY_COMMAND = "scale-down"


@pytest.mark.parametrize("name", [name for name in names() if name != BY_COMMAND])
def test_it_passes(name: str, tmp_path: Path) -> None:
    expect_as_it_must(name, tmp_path, negative=False)


@pytest.mark.parametrize("name", TO_THE_END)
def test_it_fails_without_the_repair(name: str, tmp_path: Path) -> None:
    expect_as_it_must(name, tmp_path, negative=True)


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The command has handlers for signals that are not to stay."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
def test_the_command_tells_the_story_and_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["chaos", "run", BY_COMMAND])
    out = capsys.readouterr().out
    data, page = (Path("holdfast-chaos", BY_COMMAND).with_suffix(suffix) for suffix in (".json", ".html"))
    report = json.loads(data.read_text())
    assert confirm(report) == [], out
    expect_page(page.read_text(), report)
    assert code == 0, out
    assert re.search(r"^ +\d+\.\d\d s  >>> kill node:node-1: SIGHUP to node-1", out, re.MULTILINE)
    table = out[out.index("EXPECTED ") :].splitlines()[1:]
    wanted = ["actions", *(name for each in report["then"] for name in each)]
    assert [row.partition(":")[0] for row in table[: len(wanted)]] == wanted
    assert re.search(r"^world_sizes: 2, 1 +2, 1$", out, re.MULTILINE)
    assert "NOT MET" not in out
    assert re.search(rf"^PASS  {BY_COMMAND} in \d+ s\nreport: {data}, {page}$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        (1000, "it needs root: each node needs a network of its own"),
        (0, "nodes cannot have networks of their own here: the command ip (iproute2) is not installed"),
    ],
)
def test_what_cannot_be_run_here_is_refused_with_what_can(
    user: int, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert main(["chaos", "run", "network-breakdown"]) == 2
    assert f"{reason}; instead, run silent-node" in capsys.readouterr().err


def test_a_place_for_reports_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["chaos", "run", BY_COMMAND, "--report", str(tmp_path / "file")]) == 2
    assert "it cannot be made: File exists; none writes none" in capsys.readouterr().err


def test_a_soak_strikes_again_and_again_and_nothing_is_lost(tmp_path: Path) -> None:
    story = Story()
    plan = SoakPlan(for_s=15.0, every_s=3.0, seed=15, num_nodes=2, budget_s=60.0)
    result, goodput = soak_job(plan, show=story.show)
    expect_report(result, tmp_path, story)
    assert len(result.evidence.struck_at) >= 4
    assert 0.0 < goodput < 1.0
