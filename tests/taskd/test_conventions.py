"""What TaskD's functions answer: True, or False and a line in the log that names what is wrong."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import pytest
from jobs import free_port, until
from managers import STARTED_S, Begin

from holdfast import taskd
from holdfast.spec.flags import parse_run
from holdfast.spec.load import load_run
from holdfast.spec.manager import load_manager
from holdfast.spec.proxy import load_proxy
from holdfast.spec.strategy import Strategy

GOOD = {"job_id": "j", "node_nums": 2, "proc_per_node": 8}
VARIABLES = ("MINDX_TASK_ID", "POD_IP", "TASKD_PROCESS_ENABLE", "HOLDFAST_TOKEN", "HOLDFAST_TLS_CONFIG")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"node_nums": 0}, ["node_nums", "0", "1 to"]),
        ({"node_nums": True}, ["node_nums", "True"]),
        ({"node_nums": None}, ["node_nums", "None"]),
        ({"proc_per_node": "many"}, ["proc_per_node", "'many'"]),
        ({"job_id": None}, ["job_id", "None", "MINDX_TASK_ID"]),
        ({"fault_recover": "pray"}, ["fault_recover", "'pray'", "recover-in-place"]),
        ({"taskd_enable": "maybe"}, ["taskd_enable", "'maybe'", "on, off"]),
        ({"cluster_infos": [{"ip": "nowhere"}]}, ["cluster_infos: ip", "'nowhere'"]),
        ({"cluster_infos": [{"ip": "0.0.0.0"}]}, ["cluster_infos: ip", "'0.0.0.0'"]),
        ({"cluster_infos": [{"port": "70000"}]}, ["cluster_infos: port", "'70000'", "65535"]),
        ({"cluster_infos": [{}, {}]}, ["cluster_infos", "a list of one"]),
    ],
)
def test_a_bad_configuration_is_false_and_named(
    change: dict[str, Any], names: list[str], caplog: pytest.LogCaptureFixture
):
    assert taskd.init_taskd_manager({**GOOD, **change}) is False
    assert taskd.start_taskd_manager() is False
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("init_taskd_manager: ")
    assert all(name in first for name in names), first
    assert second == "start_taskd_manager: init_taskd_manager has to be called first, and to answer True"


@pytest.mark.parametrize("config", [None, [], "job_id"])
def test_a_configuration_is_a_dict(config: Any):
    assert taskd.init_taskd_manager(config) is False
    assert taskd.init_taskd_agent(config) is False
    assert taskd.init_taskd_proxy(config) is False


@pytest.mark.parametrize(
    ("variable", "value"), [("POD_IP", "here"), ("TASKD_PROCESS_ENABLE", "yes"), ("HOLDFAST_TLS_CONFIG", "/none")]
)
def test_a_bad_variable_is_false_and_named(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv(variable, value)
    assert taskd.init_taskd_manager(GOOD) is False
    assert variable in caplog.text
    assert value in caplog.text


def test_what_a_manager_runs_by_default():
    spec = load_manager({**GOOD, "job_id": None}, {"MINDX_TASK_ID": "task", "POD_IP": "10.0.0.7"})
    assert (spec.host, spec.port) == ("10.0.0.7", 9601)
    rules = spec.rules
    assert (rules.job_id, rules.min_nodes, rules.max_nodes, rules.workers_per_node) == ("task", 2, 2, 8)
    assert rules.max_restarts == 32767
    assert Strategy.RECOVER_IN_PLACE in rules.strategies
    assert any("10.0.0.7:9601" in note for note in spec.notes)
    assert any("no token" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("config", "env", "strategies"),
    [
        ({"taskd_enable": "off"}, {}, [Strategy.EXIT]),
        ({"taskd_enable": "off"}, {"TASKD_PROCESS_ENABLE": "on"}, None),
        ({}, {"TASKD_PROCESS_ENABLE": "off"}, [Strategy.EXIT]),
        ({"fault_recover": "off"}, {}, [Strategy.EXIT]),
        ({"fault_recover": "dump, retry"}, {}, [Strategy.RETRY, Strategy.DUMP, Strategy.EXIT]),
    ],
)
def test_how_faults_are_repaired(config: dict[str, str], env: dict[str, str], strategies: list[Strategy] | None):
    usual = load_manager(GOOD, {}).rules.strategies
    assert list(load_manager({**GOOD, **config}, env).rules.strategies) == (strategies or list(usual))


def test_loopback_is_said_where_others_have_to_come():
    assert any("127.0.0.1:9601, which other machines cannot reach" in note for note in load_manager(GOOD, {}).notes)
    assert load_manager({**GOOD, "node_nums": 1}, {}).notes == ()


def test_a_node_waits_for_the_manager_of_its_job():
    flags = ("--master_addr", "10.0.0.7", "--master_port", "29500", "--no-python", "true")
    env = {"TASKD_PROCESS_ENABLE": "on", "MINDX_TASK_ID": "task"}
    spec, _ = load_run(parse_run(flags), env)
    assert (spec.managed, spec.host, spec.port, spec.store_port) == (True, "10.0.0.7", 9601, 29500)
    assert (spec.rules.job_id, spec.rules.max_restarts) == ("task", 32767)
    given, _ = load_run(parse_run(("--max_restarts", "5", "--rdzv_id", "mine", *flags)), env)
    assert (given.rules.job_id, given.rules.max_restarts) == ("mine", 5)
    alone, _ = load_run(parse_run(flags), {"TASKD_PROCESS_ENABLE": "off"})
    assert (alone.managed, alone.host, alone.port, alone.rules.max_restarts) == (False, "127.0.0.1", 0, 3)


@pytest.mark.parametrize("rank", [-1, "0", 1.0, None, True])
def test_a_bad_rank_is_false(rank: Any, caplog: pytest.LogCaptureFixture):
    assert taskd.init_taskd_worker(rank) is False
    assert repr(rank) in caplog.text
    assert taskd.start_taskd_worker() is False
    assert taskd.destroy_taskd_worker() is False


def test_a_worker_lives_from_init_to_destroy():
    assert taskd.init_taskd_worker(3, 100, "ms") is True
    assert taskd.start_taskd_worker() is True
    assert taskd.destroy_taskd_worker() is True
    assert taskd.destroy_taskd_worker() is False
    assert taskd.init_taskd_worker(0, framework="tf") is False


def test_an_agent_wants_its_functions(caplog: pytest.LogCaptureFixture):
    assert taskd.start_taskd_agent() is False
    assert taskd.register_func("START", print) is False
    assert taskd.register_func("MONITOR", 7) is False  # type: ignore[arg-type]
    assert taskd.init_taskd_agent({"Framework": "Keras"}) is False
    assert taskd.init_taskd_agent({"Framework": "PyTorch", "UpstreamPort": 0}) is False
    assert taskd.init_taskd_agent({"Framework": "PyTorch", "ServerRank": 0}) is True
    assert taskd.register_func("MONITOR", print) is True
    assert taskd.start_taskd_agent() is False
    assert "KILL_WORKER, START_ALL_WORKER is missing" in caplog.text


def test_a_proxy_leads_to_the_manager(manager: Begin, caplog: pytest.LogCaptureFixture):
    port, listen = free_port(), free_port()
    config = {"ListenPort": listen, "UpstreamAddr": "127.0.0.1", "UpstreamPort": str(port)}
    manager({**GOOD, "cluster_infos": {"port": port}})
    assert taskd.destroy_taskd_proxy() is False
    assert taskd.init_taskd_proxy(config) is True
    try:
        assert taskd.init_taskd_proxy(config) is False
        assert "a proxy runs already" in caplog.text
        until(lambda: _is_healthy(listen), within_s=STARTED_S, what="the manager, through the proxy")
    finally:
        assert taskd.destroy_taskd_proxy() is True
    assert not _is_healthy(listen)
    assert taskd.init_taskd_proxy({**config, "ListenPort": port}) is False
    assert f"127.0.0.1:{port} cannot be used" in caplog.text


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_where_a_proxy_listens_by_default():
    assert load_proxy({}, {}).listen == ("127.0.0.1", 9602)
    assert load_proxy({}, {"POD_IP": "10.0.0.7"}).upstream == ("10.0.0.7", 9601)


def test_it_has_a_version():
    assert taskd.__version__
