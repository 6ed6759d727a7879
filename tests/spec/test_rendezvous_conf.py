"""`--rdzv-conf`, as it is written for other launchers."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SpecError
from holdfast.spec.flags import parse_run
from holdfast.spec.load import load_run


@pytest.mark.parametrize("key", ["join_timeout", "timeout", "pend_timeout"])
def test_how_long_nodes_are_waited_for_has_several_names(tmp_path: Path, key: str):
    script = tmp_path / "train.py"
    script.touch()
    spec, notes = load_run(parse_run(["--nnodes", "3:4", "--rdzv-conf", f"{key}=600,node_unit=2", str(script)]), {})
    assert (spec.rules.min_nodes, spec.rules.max_nodes, spec.rules.join_timeout_s) == (3, 4, 600.0)
    assert [note for note in notes if "rdzv-conf" in note] == ["--rdzv-conf: node_unit does nothing here"]


def test_two_names_of_one_thing_are_a_mistake_unless_they_agree(tmp_path: Path):
    script = tmp_path / "train.py"
    script.touch()
    meeting = ["--nnodes", "3:4", "--rdzv-conf"]
    with pytest.raises(SpecError, match="join_timeout and pend_timeout mean the same"):
        load_run(parse_run([*meeting, "join_timeout=600,pend_timeout=900", str(script)]), {})
    spec, _ = load_run(parse_run([*meeting, "join_timeout=900,pend_timeout=900", str(script)]), {})
    assert spec.rules.join_timeout_s == 900.0


@pytest.mark.parametrize(("written", "window_s"), [("7200", 7200.0), ("off", None), ("inf", None)])
def test_how_long_failures_are_remembered(tmp_path: Path, written: str, window_s: float | None):
    script = tmp_path / "train.py"
    script.touch()
    spec, _ = load_run(parse_run(["--rdzv-conf", f"restart_window={written}", str(script)]), {})
    assert spec.rules.restart_window_s == window_s


@pytest.mark.parametrize("conf", ["timeout=20,join_timeout=30", "join_timeout=30,timeout=20"])
def test_the_timeout_that_torchrun_has_besides_gives_way(tmp_path: Path, conf: str):
    script = tmp_path / "train.py"
    script.touch()
    spec, _ = load_run(parse_run(["--nnodes", "3:4", "--rdzv-conf", conf, str(script)]), {})
    assert spec.rules.join_timeout_s == 30.0
