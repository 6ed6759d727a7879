"""Files of experiments: what is shipped is valid, and what is wrong is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.chaos.experiment import SIZES, Scale, Strike
from holdfast.chaos.experiment_file import load_experiment, names
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.injection import choose
from holdfast.errors import SpecError

SEED = {
    "preempt-node",
    "straggler-node",
    "fault-node",
    "network-breakdown",
    "process-corruption",
    "scale-up",
    "scale-down",
}
OURS = {"kill-master", "cascade", "rank-0-node-loss", "hang", "memory-growth"}

WHOLE = """\
says: something
given:
  job:
    roles: {worker: {nodes: 2}}
when:
  - after: {steps: 3, event: {kind: node_gone, node: {small: a, normal: b}}}
    fault: kill
    target: rank:1
    with: {signal: TERM}
  - slots: {small: 2, normal: 4}
  - end: training
then:
  - world_sizes: {small: [1, 2], normal: [3, 4]}
  - exit_code: 0
negative:
  says: not repaired
  fails: [exit_code]
"""

MISTAKES = {
    "says: something": ("sayss: something", "line 1: sayss: 'sayss' is not valid; it is no field; did you mean says?"),
    "nodes: 2": ("nodes: two", "line 4: roles.worker.nodes: 'two'"),
    "{nodes: 2}": ("{knots: 2}", "line 4: roles.worker.knots: 'knots'"),
    "worker: {": (
        "other: {}, worker: {",
        "line 4: roles.worker: 'other, worker' is not valid; the job of an experiment",
    ),
    "steps: 3": ("stepps: 3", "line 6: when[0].after.stepps: 'stepps'"),
    "kind: node_gone": ("sort: node_gone", "line 6: when[0].after.event: '' is not valid; it must have a kind"),
    "fault: kill": ("fault: kill\n    scale: 2", "when[0]: 'fault and scale' is not valid; it must have one of"),
    "- slots: {small: 2, normal: 4}": ("- slots: -1", "line 10: when[1].slots: '-1'"),
    "- end: training": ("- end: training\n    target: master", "line 12: when[2].target: 'target'"),
    "- world_sizes": ("- word_sizes", "then[0].word_sizes: 'word_sizes' is not valid; did you mean world_sizes?"),
    "[1, 2]": ("[1, 2.5]", "line 13: then[0].world_sizes: 2.5 is not valid; it must be a whole number"),
    "normal: [3, 4]": ("large: [3, 4]", "line 13: then[0].world_sizes.large: 'large'"),
    "exit_code: 0": ("exit_code: zero", "line 14: then[1].exit_code: 'zero'"),
    "fails: [exit_code]": ("fails: [exit]", "line 17: negative.fails: 'exit' is not valid; there is: exit_code"),
    "says: not repaired": ("say: not repaired", "line 16: negative.say: 'say'"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "own.yaml"


def test_all_that_were_promised_are_shipped() -> None:
    assert set(names()) >= SEED | OURS


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", names())
def test_what_is_shipped_is_valid(name: str, size: str) -> None:
    experiment = load_experiment(name, size=size)
    assert {each.name for each in experiment.then} >= {*experiment.negative.fails, "exit_code", "orphans", "samples"}
    for action in (*experiment.when, *experiment.negative.when):
        if isinstance(action.act, Strike):
            choose(FAULTS[action.act.fault], action.act.parameters)
    if experiment.root:
        assert load_experiment(experiment.instead, size=size).root == "", "those who are not root have another one"


def test_sizes_choose_their_values(file: Path) -> None:
    file.write_text(WHOLE)
    small, normal = (load_experiment(str(file), size=size) for size in SIZES)
    assert (small.name, small.when[0].after.event["node"], normal.when[0].after.event["node"]) == ("own", "a", "b")
    assert [each.when[1].act for each in (small, normal)] == [Scale(slots=2), Scale(slots=4)]
    assert [each.then[0].value for each in (small, normal)] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("good", MISTAKES)
def test_mistakes_are_named_with_their_line(good: str, file: Path) -> None:
    bad, message = MISTAKES[good]
    assert good in WHOLE
    file.write_text(WHOLE.replace(good, bad))
    with pytest.raises(SpecError) as caught:
        load_experiment(str(file), size="small")
    assert f"{file}, line" in str(caught.value)
    assert message in str(caught.value)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"did you mean kill-master\? There is: cascade"):
        load_experiment("kill-mastr", size="small")
