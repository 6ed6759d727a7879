"""A job file: what it says, where each value comes from, and how a mistake in it is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.spec.job_fields import FIELDS
from holdfast.spec.job_schema import job_schema
from holdfast.spec.strategy import Strategy
from holdfast.spec.submit import SubmitSpec, load_submit

GOOD = """\
name: mnist
roles:
  trainer:
    nodes: 3:4
    processes: 2
    cpu: 500m
    memory: 4Gi
    command: [python, -u, train.py, --epochs, 5]
    env: {SWITCH: on, COUNT: 3}
recover:
  strategy: [elastic-training, retry]
  max_restarts: 7
  restart_window: off
timeouts:
  join: 60
  missed_beats: 4
  hang: 10:100
relaunch:
  backoff: 0.5:8
  memory_step: 1G
platform:
  slots: 3
"""

Load = Callable[..., SubmitSpec]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Read a job file, with flags; a script lies beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def read(text: str | bytes | None, *flags: str) -> SubmitSpec:
        if text is None:
            return load_submit(flags)
        (tmp_path / "job.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        return load_submit(["job.yaml", *flags])

    return read


def test_every_field_of_a_file_counts(load: Load, tmp_path: Path):
    spec = load(GOOD)
    assert (spec.roles[0].name, spec.roles[0].min_nodes, spec.roles[0].max_nodes) == ("trainer", 3, 4)
    assert (spec.roles[0].cpu, spec.roles[0].memory_bytes) == (0.5, 4 << 30)
    assert spec.roles[0].command.how == ()
    assert spec.roles[0].command.words == (str(tmp_path / "train.py"), "--epochs", "5")
    assert spec.roles[0].env == {"SWITCH": "on", "COUNT": "3"}, "texts stay what was written"
    assert spec.roles[0].rules.strategies == (Strategy.RETRY, Strategy.ELASTIC_TRAINING, Strategy.EXIT)
    assert (spec.roles[0].rules.max_restarts, spec.roles[0].rules.join_timeout_s, spec.roles[0].rules.lease_s) == (
        7,
        60,
        4,
    )
    assert spec.roles[0].rules.restart_window_s is None
    assert (spec.roles[0].rules.min_nodes, spec.roles[0].rules.max_nodes) == (3, 4)
    assert (spec.relaunch.backoff_s, spec.relaunch.memory_step_bytes) == ((0.5, 8), 10**9)
    assert spec.platform.slots == 3
    assert re.fullmatch("mnist-[0-9a-f]{6}", spec.job_id)
    assert spec.roles[0].rules.job_id == spec.job_id


def test_nodes_are_told_what_was_asked_for_and_no_defaults(load: Load):
    flags = load(GOOD).roles[0].run_flags
    assert "--nproc-per-node=2" in flags
    assert "--hang-timeout=10:100" in flags
    assert not [flag for flag in flags if flag.startswith("--shutdown-timeout")]


def test_everything_can_be_said_by_flags_alone(load: Load):
    spec = load(None, "--nodes=2", "--memory=1Gi", "--env=A=1", "--env=B=2=3", "--", "bash", "-c", "x --y")
    assert (spec.roles[0].name, spec.roles[0].max_nodes, spec.roles[0].memory_bytes) == ("worker", 2, 1 << 30)
    assert spec.roles[0].env == {"A": "1", "B": "2=3"}
    assert (spec.roles[0].command.how, spec.roles[0].command.words) == (("--no-python",), ("bash", "-c", "x --y"))


def test_flags_win_and_variables_add_up(load: Load):
    spec = load(GOOD, "--nodes", "1:2", "--env", "COUNT=4", "--", "python", "-m", "pkg", "-v")
    assert (spec.roles[0].min_nodes, spec.roles[0].max_nodes) == (1, 2)
    assert spec.roles[0].env == {"SWITCH": "on", "COUNT": "4"}
    assert (spec.roles[0].command.how, spec.roles[0].command.words) == (("--module",), ("pkg", "-v"))
    nodes = spec.found["roles.trainer.nodes"]
    assert (nodes.value, nodes.source, nodes.overruled) == ("1:2", "--nodes", "job.yaml, line 4: 3:4")


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--network-check", "job.yaml", "--exclude-straggler"), (True, True)),
        (("--exclude_straggler", "on", "job.yaml", "--network_check=off"), (False, True)),
        (("job.yaml", "--network-check", "off", "--exclude-straggler", "--", "off"), (False, True)),
    ],
)
def test_a_switch_needs_no_value_and_takes_no_file_for_it(load: Load, tmp_path: Path, flags, found):
    (tmp_path / "job.yaml").write_text(GOOD)
    rules = load(None, *flags).roles[0].rules
    assert (rules.network_check, rules.exclude_straggler) == found


def test_each_field_has_a_flag_and_is_told_once(load: Load):
    assert len({field.flag for field in FIELDS}) == len(FIELDS)
    found = load(GOOD).found
    assert list(found) == [field.path.replace("*", "trainer") for field in FIELDS]
    assert found["timeouts.join"].source == "job.yaml, line 15"
    assert found["timeouts.beat"].source == "default"


def test_a_dry_run_tells_all_and_starts_nothing(load: Load, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    load(GOOD)
    before = sorted(tmp_path.iterdir())
    assert main(["submit", "job.yaml", "--dry-run", "--cpu", "1"]) == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert lines["roles.trainer.cpu"] == "1 --cpu, overrules job.yaml, line 6: 500m"
    assert lines["recover.strategy"] == "elastic-training,retry job.yaml, line 11"
    assert main(["submit", "job.yaml", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fields"]["platform.slots"] == {"value": "3", "source": "job.yaml, line 22", "overruled": ""}
    assert told["runs"][:2] == ["holdfast", "run"]
    assert sorted(tmp_path.iterdir()) == before


SEVERAL = """\
name: both
roles:
  worker:
    nodes: 2:3
    command: [train.py]
    memory: 1Gi
  evaluator:
    command: [train.py, --evaluate]
platform: {slots: 3}
"""


def test_each_of_several_roles_has_its_fields_and_a_world_of_its_own(load: Load, tmp_path: Path):
    worker, evaluator = (spec := load(SEVERAL)).roles
    assert (worker.name, worker.min_nodes, worker.max_nodes, worker.memory_bytes) == ("worker", 2, 3, 1 << 30)
    assert (evaluator.name, evaluator.max_nodes, evaluator.memory_bytes) == ("evaluator", 1, None)
    assert evaluator.command.words == (str(tmp_path / "train.py"), "--evaluate")
    assert [role.rules.job_id for role in spec.roles] == [f"{spec.job_id}-worker", f"{spec.job_id}-evaluator"]
    assert (worker.rules.max_nodes, evaluator.rules.max_nodes) == (3, 1)
    assert spec.found["roles.evaluator.command"].source == "job.yaml, line 8"
    assert spec.found["roles.evaluator.nodes"].source == "default"
    of_roles = [name for name in spec.found if name.startswith("roles.")]
    assert of_roles == sorted(of_roles, key=lambda name: "evaluator" in name), "one role after the other"


def test_a_flag_is_about_the_role_that_is_named(load: Load, capsys: pytest.CaptureFixture[str]):
    worker, evaluator = load(SEVERAL, "--role", "evaluator", "--nodes", "1:2", "--max-restarts", "5").roles
    assert (worker.max_nodes, evaluator.max_nodes) == (3, 2)
    assert worker.rules.max_restarts == evaluator.rules.max_restarts == 5
    mistakes = {
        ("--nodes", "2"): ("--nodes: '2'", "say which with --role: worker, evaluator"),
        ("--", "train.py"): ("--: 'train.py'", "say which with --role: worker, evaluator"),
        ("--role", "ps"): ("--role: 'ps'", "it must be one of worker, evaluator"),
    }
    for flags, words in mistakes.items():
        assert main(["submit", "job.yaml", *flags]) == 2
        err = capsys.readouterr().err
        for word in words:
            assert word in err


def test_a_dry_run_has_a_line_for_each_field(load: Load, capsys: pytest.CaptureFixture[str]):
    assert main(["submit", "--dry-run", "--", "sh", "-c", "true\ntrue"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(FIELDS)
    assert any("sh -c 'true\\ntrue'" in row for row in rows)


def test_a_dry_run_tells_every_role(load: Load, capsys: pytest.CaptureFixture[str]):
    load(SEVERAL)
    assert main(["submit", "job.yaml", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["runs"]) == ["worker", "evaluator"]
    assert "--role=evaluator" in told["runs"]["evaluator"]
    assert told["runs"]["evaluator"][-1] == "--evaluate"
    assert told["fields"]["roles.worker.nodes"]["value"] == "2:3"


MISTAKES = {
    "an unknown field": ("roles:\n  w:\n    node: 3\n", "line 3: roles.w.node", "'node'", "did you mean nodes?"),
    "an unknown section": ("relaunchs: {}\n", "line 1: relaunchs", "did you mean relaunch?"),
    "nodes upside down": ("roles: {w: {nodes: 3:2}}", "roles.w.nodes", "'3:2'", "not above MAX"),
    "a list of nodes": ("roles: {w: {nodes: [1, 2]}}", "roles.w.nodes", "a list", "one value"),
    "no workers": ("roles: {w: {processes: 0}}", "roles.w.processes", "'0'", "1 or more"),
    "memory in words": ("roles: {w: {memory: 4 gigs}}", "roles.w.memory", "'4 gigs'", "Gi"),
    "no memory": ("roles: {w: {memory: 0}}", "roles.w.memory", "above 0"),
    "a negative core": ("roles: {w: {cpu: -1}}", "roles.w.cpu", "above 0"),
    "a strategy": ("recover:\n  strategy: [retry, pray]\n", "line 2: recover.strategy", "'pray'", "recover-in-place"),
    "endless time": ("timeouts: {join: .inf}", "timeouts.join", "'.inf'"),
    "no time": ("timeouts: {join: nan}", "timeouts.join", "'nan'"),
    "a variable": ("roles: {w: {env: {1A: x}}}", "roles.w.env", "'1A'", "letters"),
    "a nested variable": ("roles: {w: {env: {A: [x]}}}", "roles.w.env.A", "single values"),
    "a command without words": ("roles: {w: {command: []}}", "roles.w.command", "script"),
    "a command with a quote": ('roles: {w: {command: "a \'b"}}', "roles.w.command", "quotes"),
    "no such script": ("roles: {w: {command: gone.py}}", "roles.w.command", "'gone.py'", "no such script"),
    "python alone": ("roles: {w: {command: python}}", "roles.w.command", "-m and a module"),
    "no command": ("roles: {w: {nodes: 1}}", "roles.w.command", "after --"),
    "no role": ("roles: {}", "line 1: roles", "at least one"),
    "no command of the second role": (
        "roles:\n  a: {command: train.py}\n  b:\n    nodes: 2\n",
        "job.yaml, line 3: roles.b.command",
        "must be given",
    ),
    "a field of the second role": (
        "roles:\n  a: {command: train.py}\n  b: {nodes: x}\n",
        "line 3: roles.b.nodes",
        "'x'",
        "MIN:MAX",
    ),
    "too little room for all roles": (
        "roles:\n  a: {command: train.py, nodes: 2:3}\n  b: {command: train.py}\nplatform: {slots: 2}\n",
        "line 4: platform.slots",
        "'2'",
        "3 or more, the least nodes of all roles: a 2, b 1",
    ),
    "a role as a list": ("roles: [a]", "line 1: roles", "a list", "by their names"),
    "a role with a bad name": ("roles: {A b: {}}", "roles", "'A b'", "small letters"),
    "a platform": ("platform: {name: moon}", "platform.name", "'moon'", "local"),
    "no such directory": ("roles: {w: {command: train.py, directory: gone}}", "no such"),
    "a field twice": ("name: a\nname: b\n", "line 2", "'name'", "first on line 1"),
    "no yaml": ("a: [", "line 1", "'a: ['", "no YAML"),
    "a tab": ("roles:\n\ta: b\n", "line 2", "'a: b'", "no YAML: found character '\\t'"),
    "a strange character": ("name: a\x00\n", "no YAML"),
    "another kind": ("name: a\nkind: Foo\n", "job.yaml, line 2: kind", "'Foo'", "ElasticJob"),
    "no place for events": (
        "events: gone/e\nroles: {w: {command: train.py}}\n",
        "line 1: events",
        "'gone/e'",
        "No such",
    ),
    "nothing": ("", "job.yaml", "fields"),
    "a list": ("- a\n", "job.yaml", "fields"),
    "a key that is a list": ("[a]: b\n", "line 1", "names"),
    "two documents": ("a: b\n---\nc: d\n", "line 3", "one job"),
    "an object of Python": ("name: !!python/object/apply:os.system [id]\n", "line 1: name", "a list"),
    "laughs": (
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(8)),
        "values",
    ),
    "itself": ("a: &a [*a]\n", "levels"),
    "deep": ("a: " + "[" * 2000 + "]" * 2000, "levels"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_file_line_field_value_and_what_is_valid(
    load: Load, capsys: pytest.CaptureFixture[str], name: str
):
    text, *words = MISTAKES[name]
    Path("job.yaml").write_text(text)
    assert main(["submit", "job.yaml"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    for word in ("job.yaml", *words):
        assert word in err


def test_a_file_that_cannot_be_read(load: Load, capsys: pytest.CaptureFixture[str]):
    for name, text in {"gone.yaml": None, "big.yaml": b"#" * (2 << 20), "bytes.yaml": b"\xff\xfe\x00"}.items():
        if text is not None:
            Path(name).write_bytes(text)
        assert main(["submit", name]) == 2
        assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ("FILE", "after --")),
        (("--nodes", "x", "--", "a"), ("--nodes", "'x'", "MIN:MAX")),
        (("--network-check=x", "--", "a"), ("--network-check", "'x'", "on, off")),
        (("--env", "x", "--", "a"), ("--env", "'x'", "NAME=VALUE")),
        (("--role", "A", "--", "a"), ("--role", "'A'")),
        (("--", "gone.py"), ("--", "no such script")),
        (("--events", "gone/e", "--dry-run", "--", "train.py"), ("--events", "'gone/e'", "No such file")),
    ],
)
def test_a_wrong_flag_is_told_by_its_name(load: Load, capsys: pytest.CaptureFixture[str], flags, words):
    assert main(["submit", *flags]) == 2
    err = capsys.readouterr().err
    for word in words:
        assert word in err


def test_the_schema_has_every_field_and_nothing_else():
    schema = job_schema()
    assert json.loads((Path(__file__).parents[2] / "docs" / "job.schema.json").read_text()) == schema
    sections = schema["properties"]
    for field in FIELDS:
        section, _, _ = field.section.partition(".")
        where = sections if not section else sections[section]
        where = where.get("additionalProperties") if section == "roles" else where
        properties = where["properties"] if section else where
        assert field.name in properties
        if field.default is not None and "pattern" in properties[field.name]:
            assert re.search(properties[field.name]["pattern"], field.default)
