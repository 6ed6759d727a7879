"""`holdfast explain`: each setting with the variable it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from certs import PASSWORDS, Files

from holdfast.cli.main import main
from holdfast.spec.cluster import VARIABLES

GOOD = {"MS_ROLE": "MS_WORKER", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118", "MS_WORKER_NUM": "8"}


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable.ours, raising=False)
        monkeypatch.delenv(variable.theirs or "NONE", raising=False)

    def run(*args: str, **variables: str) -> tuple[int, str, str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code = main(["explain", *args])
        return code, *capsys.readouterr()

    return run


def test_every_setting_is_told_with_where_it_comes_from(say):
    code, out, _ = say(**GOOD, HOLDFAST_SCHED_HOST="::1", MS_NODE_TIMEOUT="6")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert code == 0
    assert list(lines) == [variable.ours for variable in VARIABLES.values()]
    assert lines["HOLDFAST_SCHED_HOST"] == "::1 set, overrules MS_SCHED_HOST=127.0.0.1"
    assert lines["HOLDFAST_WORKER_NUM"] == "8 from MS_WORKER_NUM"
    assert lines["HOLDFAST_TOPO_TIMEOUT"] == "1800 default"
    assert lines["HOLDFAST_RETRY_INTERVAL_UPPER"] == "2 default, shortened to fit HOLDFAST_NODE_TIMEOUT"


def test_passwords_are_not_told(say, tmp_path: Path):
    files = Files(tmp_path)
    for args in ((), ("--json",)):
        code, out, err = say(*args, **GOOD, HOLDFAST_TLS_CONFIG=str(files.config), **PASSWORDS)
        assert code == 0
        assert str(files.config) in out
        assert not any(password in out + err for password in PASSWORDS.values())


def test_the_same_as_json(say):
    _, out, _ = say("--json", **GOOD)
    told = json.loads(out)
    assert told["HOLDFAST_WORKER_NUM"] == {"value": "8", "source": "MS_WORKER_NUM", "overruled": ""}
    assert told["HOLDFAST_NODE_TIMEOUT"]["source"] == "default"
    assert told["notes"] == []


def test_a_bad_value_is_told_as_the_process_would(say):
    code, _, err = say(**{**GOOD, "MS_SCHED_PORT": "80"})
    assert code == 2
    assert "MS_SCHED_PORT: '80' is not valid; it must be a whole number from 1024 to 65535" in err


def test_the_notes_that_the_process_would_print_are_told(say, tmp_path: Path):
    table = tmp_path / "table.json"
    table.write_text('{"server_list": ["10.0.0.1"]}')
    odd = {**GOOD, "MS_ROLE": "MS_SCHED", "RANK_TABLE_FILE": str(table), "MS_ENABLE_LCCL": "1"}
    notes = [
        f"warning: RANK_TABLE_FILE={table} is not used, ranks are given automatically: "
        "a server has none of pod_ip, host_ip, server_id",
        "MS_ENABLE_LCCL=1 does nothing here: there is no LCCL",
    ]
    code, out, err = say(**odd)
    assert (code, err) == (0, "".join(f"holdfast: {note}\n" for note in notes))
    assert str(table) in out
    code, out, err = say("--json", **odd)
    assert (code, json.loads(out)["notes"], err) == (0, notes, "")
    say_nothing = say(**{**GOOD, "RANK_TABLE_FILE": "", "MS_ENABLE_LCCL": ""})
    assert say_nothing[2] == ""


def test_nothing_is_made_by_asking(say, tmp_path: Path):
    say(
        **GOOD,
        MS_ENABLE_RECOVERY="1",
        MS_RECOVERY_PATH=str(tmp_path / "state"),
        HOLDFAST_LOG_DIR=str(tmp_path / "logs"),
    )
    assert not list(tmp_path.iterdir())


def test_without_a_role_there_is_little_to_tell(say):
    assert "trains alone" in say()[1]
    assert say("--json")[1] == "{}\n"
