"""Every flag of torchrun's own parser, in each of its spellings, is one of ours."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jobs import PYTHON

from holdfast.errors import SpecError
from holdfast.spec.flags import FLAGS, parse_run
from holdfast.spec.load import load_run

DUMP = """
import json
from torch.distributed.run import get_args_parser
print(json.dumps([
    {"names": a.option_strings, "dest": a.dest, "takes_value": a.nargs != 0, "default": repr(a.default),
     "choices": list(a.choices) if a.choices else None, "positional": not a.option_strings}
    for a in get_args_parser()._actions
]))
"""

VALUES = {
    "nnodes": "2:3",
    "nproc_per_node": "2",
    "rdzv_endpoint": "localhost:29400",
    "rdzv_conf": "join_timeout=30,timeout=20",
    "max_restarts": "5",
    "monitor_interval": "0.5",
    "node_rank": "0",
    "master_port": "29511",
    "redirects": "0:1",
    "tee": "3",
    "local_ranks_filter": "0",
    "numa_binding": "node",
    "start_method": "fork",
    "shutdown_timeout": "7",
    "signals_to_handle": "SIGTERM,SIGUSR1",
    "logs_specs": "default",
}


@cache
def torchrun_flags() -> list[dict[str, Any]]:
    dump = subprocess.run([PYTHON, "-c", DUMP], capture_output=True, text=True, check=True)
    return [action for action in json.loads(dump.stdout) if action["dest"] != "help"]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flags") / "train.py"
    path.write_text("pass\n")
    return path


def options() -> list[dict[str, Any]]:
    return [action for action in torchrun_flags() if not action["positional"]]


def load(*argv: str, env: dict[str, str] | None = None) -> Any:
    spec, _ = load_run(parse_run(argv), env or {})
    return spec


def test_every_spelling_of_every_flag_is_accepted(script: Path):
    spellings = 0
    for action in options():
        value = VALUES.get(action["dest"], "some")
        for name in action["names"]:
            forms = [(name, value), (f"{name}={value}",)] if action["takes_value"] and name[1] == "-" else [(name,)]
            if action["takes_value"] and name[1] != "-":
                forms = [(name, value), (name + value,)]
            for form in forms:
                load(*form, str(script))
                spellings += 1
    assert spellings > 60


def test_every_choice_is_accepted(script: Path):
    for action in options():
        for choice in action["choices"] or ():
            load(action["names"][0], choice, str(script))


def test_the_positionals_are_the_same(script: Path):
    assert [action["dest"] for action in torchrun_flags() if action["positional"]] == [
        "training_script",
        "training_script_args",
    ]
    spec = load(str(script), "--nnodes", "9", "-m", "--", "-x")
    assert spec.command.args == ("--nnodes", "9", "-m", "--", "-x")
    assert spec.rules.max_nodes == 1


def test_every_variable_of_torchrun_sets_its_flag(script: Path):
    """torchrun's env and check_env actions read PET_<DEST>; a value of ours must come through as it is."""
    expected = {
        "NNODES": ("3:4", lambda spec: (spec.rules.min_nodes, spec.rules.max_nodes), (3, 4)),
        "NPROC_PER_NODE": ("5", lambda spec: spec.num_workers, 5),
        "RDZV_ID": ("abc", lambda spec: spec.rules.job_id, "abc"),
        "RDZV_CONF": ("join_timeout=9", lambda spec: spec.rules.join_timeout_s, 9.0),
        "MAX_RESTARTS": ("8", lambda spec: spec.rules.max_restarts, 8),
        "ROLE": ("boss", lambda spec: spec.role, "boss"),
        "MODULE": ("1", lambda spec: spec.command.how, "module"),
        "NO_PYTHON": ("1", lambda spec: spec.command.how, "program"),
        "RUN_PATH": ("1", lambda spec: spec.command.how, "run_path"),
        "LOG_DIR": ("logs-here", lambda spec: spec.logs.log_dir, "logs-here"),
        "REDIRECTS": ("2", lambda spec: spec.logs.redirects, {0: 2}),
        "TEE": ("0:1", lambda spec: spec.logs.tee, {0: 1}),
        "LOCAL_RANKS_FILTER": ("0", lambda spec: spec.logs.shown_local_ranks, (0,)),
        "DUPLICATE_STDOUT_FILTERS": ("a,b,,c", lambda spec: spec.logs.stdout_filters, ("a", "b,c")),
        "MASTER_PORT": ("4000", lambda spec: spec.store_port, 4000),
        "LOCAL_ADDR": ("10.0.0.7", lambda spec: spec.local_addr, "10.0.0.7"),
        "START_METHOD": ("spawn", lambda spec: spec.warm, False),
        "SIGNALS_TO_HANDLE": ("SIGUSR2", lambda spec: spec.signals, ("SIGUSR2",)),
        "SHUTDOWN_TIMEOUT": ("4", lambda spec: spec.shutdown_s, 4.0),
        "VIRTUAL_LOCAL_RANK": ("1", lambda spec: spec.virtual_local_rank, True),
    }
    for name, (value, read, wanted) in expected.items():
        assert read(load(str(script), env={f"PET_{name}": value})) == wanted, name


def test_a_flag_wins_over_its_variable(script: Path):
    assert load("--max-restarts", "1", str(script), env={"PET_MAX_RESTARTS": "2"}).rules.max_restarts == 1


def test_a_switch_can_be_turned_off_by_its_variable(script: Path):
    assert load(str(script), env={"PET_MODULE": "0"}).command.how == "script"
    with pytest.raises(SpecError, match="PET_MODULE"):
        load(str(script), env={"PET_MODULE": "yes"})


def test_the_beginning_of_a_flag_is_enough_as_for_torchrun(script: Path):
    assert load("--rol", "boss", str(script)).role == "boss"


def test_what_differs_from_torchrun_says_so_in_the_help():
    """A default that is not torchrun's is a surprise unless the help admits it."""
    theirs = {action["dest"]: action["default"].strip("'") for action in options() if action["takes_value"]}
    for flag in FLAGS:
        default = theirs.get(flag.dest)
        if default is None or default in ("None", "[]", "", flag.default):
            continue
        assert "Differs from torchrun" in flag.help, f"{flag.name}: {flag.default!r}, in torchrun {default!r}"
