"""What a process learns of its cluster from the environment, and the errors that name the variable."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from holdfast.cluster.rules import rules_of
from holdfast.errors import SpecError
from holdfast.spec.cluster import VARIABLES, ClusterSpec, Role, load_cluster

GOOD = {"MS_ROLE": "MS_WORKER", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118", "MS_WORKER_NUM": "8"}

PAIRS = {
    "role": ("scheduler", "MS_WORKER"),
    "host": ("::1", "127.0.0.1"),
    "worker_ip": ("127.0.0.2", "127.0.0.1"),
    "recovery": ("0", "1"),
    "heartbeat_off": ("0", "1"),
    "retry_lower": ("1", "2"),
    "retry_upper": ("6", "7"),
}


def load(**changes: str) -> ClusterSpec:
    spec = load_cluster({**GOOD, **changes})
    assert spec is not None
    return spec


def test_without_a_role_there_is_no_cluster():
    assert load_cluster({}) is None
    assert load_cluster({"MS_SCHED_HOST": "127.0.0.1"}) is None


def test_defaults_are_those_of_the_original():
    spec = load()
    assert (spec.role, spec.host, spec.port, spec.num_workers) == (Role.WORKER, "127.0.0.1", 8118, 8)
    assert (spec.recovery, spec.num_servers, spec.worker_ip, spec.heartbeat) == (False, 0, "", True)
    assert (spec.topo_timeout_s, spec.node_timeout_s, spec.receive_timeout_s) == (1800.0, 30.0, 300.0)
    assert (spec.retry_s, spec.rejection_window_s) == ((3.0, 5.0), 30.0)
    assert spec.notes == ()
    assert not spec.node_id.isdecimal(), "a number would be its rank"
    assert spec.node_id != load().node_id, "a name is made up for each process"


@pytest.mark.parametrize("name", [name for name in VARIABLES if VARIABLES[name].theirs and name != "recovery_path"])
def test_every_variable_has_a_name_of_ours_which_wins_and_says_so(name: str):
    variable = VARIABLES[name]
    ours, theirs = PAIRS.get(name, ("2000", "3000"))
    both = load(**{variable.ours: ours, variable.theirs: theirs})
    alone = load(**{variable.theirs: "", variable.ours: ours})
    assert both.notes == (f"{variable.ours}={ours} counts, not {variable.theirs}={theirs}",)
    assert alone.notes == ()


@pytest.mark.parametrize("name", ["MS_PSERVER", "MS_SERVER", "server"])
def test_a_server_has_several_names(name: str):
    assert load(MS_ROLE=name, MS_SERVER_NUM="1").role is Role.SERVER


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"MS_ROLE": "FOO"}, "MS_ROLE: 'FOO'"),
        ({"MS_ROLE": "MS_PSERVER"}, "HOLDFAST_SERVER_NUM: '0'"),
        ({"MS_SCHED_HOST": ""}, r"HOLDFAST_SCHED_HOST \(or MS_SCHED_HOST\)"),
        ({"MS_SCHED_HOST": "nowhere"}, "MS_SCHED_HOST: 'nowhere'"),
        ({"MS_SCHED_HOST": "0.0.0.0"}, "MS_SCHED_HOST: '0.0.0.0' is not valid; it must be an address that others can"),
        ({"MS_SCHED_HOST": "::"}, "MS_SCHED_HOST: '::'"),
        ({"MS_NODE_ID": "9" * 30}, "MS_NODE_ID: '9+' is not valid; a number is a rank"),
        ({"MS_NODE_ID": "x" * 201}, "MS_NODE_ID: 'x+' is not valid; it must be printable text of at most 200 bytes"),
        ({"MS_NODE_ID": "b\udce9"}, "MS_NODE_ID: .* is not valid; it must be printable text"),
        ({"MS_SCHED_PORT": ""}, "MS_SCHED_PORT"),
        ({"MS_SCHED_PORT": "0"}, "MS_SCHED_PORT: '0'"),
        ({"MS_SCHED_PORT": "80"}, "MS_SCHED_PORT: '80'"),
        ({"MS_SCHED_PORT": "70000"}, "MS_SCHED_PORT: '70000'"),
        ({"MS_SCHED_PORT": "abc"}, "MS_SCHED_PORT: 'abc'"),
        ({"MS_WORKER_NUM": ""}, "MS_WORKER_NUM"),
        ({"MS_WORKER_NUM": "-1"}, "MS_WORKER_NUM: '-1'"),
        ({"MS_SERVER_NUM": "-1"}, "MS_SERVER_NUM: '-1'"),
        ({"MS_TOPO_TIMEOUT": "soon"}, "MS_TOPO_TIMEOUT: 'soon'"),
        ({"MS_NODE_TIMEOUT": "0"}, "MS_NODE_TIMEOUT: '0' .* negative for no limit"),
        ({"MS_RECEIVE_MSG_TIMEOUT": "nan"}, "MS_RECEIVE_MSG_TIMEOUT: 'nan'"),
        ({"MS_RETRY_INTERVAL_LOWER": "-1"}, "MS_RETRY_INTERVAL_LOWER: '-1'"),
        ({"MS_RETRY_INTERVAL_LOWER": "6"}, "MS_RETRY_INTERVAL_LOWER: '6' .*UPPER=5"),
        ({"MS_RETRY_INTERVAL_UPPER": "11"}, "MS_RETRY_INTERVAL_UPPER: '11' .* at most 10 s, a third of .*TIMEOUT=30"),
        ({"HOLDFAST_REJECTION_WINDOW": "-1"}, "HOLDFAST_REJECTION_WINDOW: '-1'"),
        ({"MS_DISABLE_HEARTBEAT": "yes"}, "MS_DISABLE_HEARTBEAT: 'yes'"),
        ({"MS_WORKER_IP": "here"}, "MS_WORKER_IP: 'here'"),
        ({"MS_WORKER_IP": "::1"}, "MS_WORKER_IP: '::1' .* IPv4 address, as the scheduler's 127.0.0.1"),
        ({"MS_SCHED_HOST": "::1", "MS_WORKER_IP": "127.0.0.1"}, "MS_WORKER_IP: '127.0.0.1' .* IPv6"),
        ({"MS_SCHED_HOST": "fd00::2"}, r"HOLDFAST_WORKER_IP \(or MS_WORKER_IP\): '' .* fd00::2"),
        ({"MS_ENABLE_RECOVERY": "yes"}, "MS_ENABLE_RECOVERY: 'yes'"),
        ({"MS_ENABLE_RECOVERY": "1"}, "HOLDFAST_RECOVERY_PATH: ''"),
        ({"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": "/proc/none"}, "MS_RECOVERY_PATH: '/proc/none'"),
        ({"HOLDFAST_LOG_DIR": "/proc/none"}, "HOLDFAST_LOG_DIR: '/proc/none'"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_variable(changes: dict[str, str], named: str):
    with pytest.raises(SpecError, match=named):
        load(**changes)


def test_names_of_ours_alone_give_the_same_cluster():
    given = {
        "role": "MS_WORKER",
        "host": "127.0.0.1",
        "port": "8118",
        "num_workers": "8",
        "num_servers": "2",
        "node_id": "5",
        "worker_ip": "127.0.0.2",
        "topo_timeout": "100",
        "node_timeout": "20",
        "receive_timeout": "40",
        "retry_lower": "1",
        "retry_upper": "2",
        "heartbeat_off": "1",
    }
    ours = load_cluster({VARIABLES[name].ours: value for name, value in given.items()})
    assert ours == load_cluster({VARIABLES[name].theirs: value for name, value in given.items()})


def test_a_cluster_keeps_to_what_its_variables_say(tmp_path: Path):
    rules = rules_of(load(MS_TOPO_TIMEOUT="100", MS_NODE_TIMEOUT="20", MS_RETRY_INTERVAL_LOWER="2"), store=("h", 1))
    assert (rules.min_nodes, rules.max_nodes, rules.max_spares, rules.store) == (8, 8, 0, ("h", 1))
    assert (rules.join_timeout_s, rules.lease_s, rules.fence_s, rules.rejection_s) == (100.0, 20.0, 18.0, 30.0)
    assert (rules.beat_s, rules.beat_spread_s, rules.heartbeat) == (2.0, 3.0, True)
    assert (rules.replaces, rules.max_restarts) == (False, 0)
    assert rules_of(load(MS_ENABLE_RECOVERY="1", MS_RECOVERY_PATH=str(tmp_path))).replaces
    assert rules_of(load(MS_DISABLE_HEARTBEAT="1")).fence_s == math.inf


def test_a_missing_recovery_path_is_made(tmp_path: Path):
    spec = load(MS_ENABLE_RECOVERY="1", MS_RECOVERY_PATH=str(tmp_path / "a" / "b"))
    assert spec.recovery
    assert Path(spec.recovery_path).is_dir()


def test_negative_timeouts_have_no_end():
    spec = load(MS_TOPO_TIMEOUT="-1", MS_NODE_TIMEOUT="-1", MS_RECEIVE_MSG_TIMEOUT="-5")
    assert {spec.topo_timeout_s, spec.node_timeout_s, spec.receive_timeout_s} == {math.inf}
    assert spec.agreed["HOLDFAST_NODE_TIMEOUT"] == "no limit"


def test_default_intervals_give_way_to_a_short_node_timeout_and_that_is_said():
    spec = load(MS_NODE_TIMEOUT="6")
    assert spec.retry_s == pytest.approx((1.2, 2.0))
    assert "every 1.2 to 2 s" in spec.notes[0]


def test_one_number_in_two_spellings_is_agreed_on():
    assert load(MS_NODE_TIMEOUT="30.0").agreed == load(HOLDFAST_NODE_TIMEOUT="30").agreed


def test_ipv6_needs_an_address_of_its_own_only_where_there_are_several():
    assert load(MS_SCHED_HOST="::1").worker_ip == ""
    assert load(MS_SCHED_HOST="fd00::2", MS_WORKER_IP="fd00::0:3").worker_ip == "fd00::3"
    assert load(MS_ROLE="MS_SCHED", MS_SCHED_HOST="fd00::2").worker_ip == ""


def test_lccl_is_accepted_and_said_to_do_nothing():
    assert load(MS_ENABLE_LCCL="1").notes == ("MS_ENABLE_LCCL=1 does nothing here: there is no LCCL",)
    assert load(MS_ENABLE_LCCL="no").notes == ()


def test_recovery_without_an_id_is_worth_a_note(tmp_path: Path):
    recovery = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(tmp_path)}
    (note,) = load(**recovery).notes
    assert note.startswith("HOLDFAST_NODE_ID (or MS_NODE_ID) is not set")
    assert load(**recovery, MS_NODE_ID="a").notes == load(**recovery, MS_ROLE="MS_SCHED").notes == ()


# --- rank tables ----------------------------------------------------------------------------------------------


def with_table(path: Path, content: object, **changes: str) -> ClusterSpec:
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(content)
    return load(MS_ROLE="MS_SCHED", MS_WORKER_NUM="3", RANK_TABLE_FILE=str(path), **changes)


def server(ranks: list[object], **address: object) -> dict[str, object]:
    return {**address, "device": [{"device_id": str(n), "rank_id": rank} for n, rank in enumerate(ranks)]}


@pytest.mark.parametrize("key", ["server_id", "host_ip", "pod_ip"])
def test_a_rank_table_gives_ranks_to_addresses(tmp_path: Path, key: str):
    table = {"server_list": [server(["0", "2"], **{key: "10.0.0.2"}), server([1], **{key: "10.0.0.1"})]}
    spec = with_table(tmp_path / "table.json", table)
    assert spec.rank_table == {"10.0.0.2": (0, 2), "10.0.0.1": (1,)}
    assert spec.notes == ()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "it makes no sense"),
        ("[]", "it makes no sense"),
        ({"servers": []}, "it lacks 'server_list'"),
        ({"server_list": [{"server_id": "10.0.0.1"}]}, "it lacks 'device'"),
        ({"server_list": [server([0, 1, 2])]}, "a server has none of pod_ip, host_ip, server_id"),
        ({"server_list": [server([0, 1, 2], server_id="node1")]}, "it makes no sense"),
        ({"server_list": [server(["x"], server_id="10.0.0.1")]}, "it makes no sense"),
        ("null", "it makes no sense"),
        ({"server_list": json.loads("[" * 500 + "]" * 500)}, "a server has none of pod_ip"),
        ({"server_list": [{"server_id": json.loads("[" * 500 + "]" * 500)}]}, "'server_id' is [[[[[["),
        pytest.param("[" * 100_000, "it makes no sense", id="deep"),
        (b'"\xff"', "it makes no sense"),
        ({"server_list": ["10.0.0.1"]}, "a server has none of pod_ip, host_ip, server_id"),
        ({"server_list": {"10.0.0.1": {}}}, "'server_list' is {'10.0.0.1': {}}, not a list"),
        ({"server_list": "10.0.0.1"}, "'server_list' is '10.0.0.1', not a list"),
        ({"server_list": None}, "'server_list' is None, not a list"),
        ({"server_list": [{"server_id": ["10.0.0.1"], "device": []}]}, "'server_id' is ['10.0.0.1'], not an address"),
        ({"server_list": [server([0, 1, 2], server_id=3)]}, "'server_id' is 3, not an address"),
        (
            {"server_list": [{"server_id": "10.0.0.1", "device": {"rank_id": 0}}]},
            "{'rank_id': 0}, not a list",
        ),
        ({"server_list": [{"server_id": "10.0.0.1", "device": ["0"]}]}, "'0' is not an object with 'rank_id'"),
        ({"server_list": [{"server_id": "10.0.0.1", "device": [{}]}]}, "it lacks 'rank_id'"),
        ({"server_list": [server([0.5], server_id="10.0.0.1")]}, "'rank_id' is 0.5, not a number"),
        ({"server_list": [server([None], server_id="10.0.0.1")]}, "'rank_id' is None, not a number"),
        ({"server_list": [server([math.inf], server_id="10.0.0.1")]}, "'rank_id' is inf, not a number"),
        ({"server_list": [server(["1" * 5000], server_id="10.0.0.1")]}, "111', not a number"),
        ({"server_list": [server([0, 1], server_id="10.0.0.1")]}, "its ranks are not 0 to 2, once each"),
        ({"server_list": [server([0, 1, 1], server_id="10.0.0.1")]}, "its ranks are not 0 to 2, once each"),
    ],
)
def test_a_bad_rank_table_is_not_used_and_that_is_said(tmp_path: Path, content: object, why: str):
    spec = with_table(tmp_path / "table.json", content)
    assert spec.rank_table == {}
    (note,) = spec.notes
    assert note.startswith(f"warning: RANK_TABLE_FILE={tmp_path / 'table.json'} is not used")
    assert why in note


def test_a_rank_table_that_is_not_there_is_not_used():
    (note,) = load(MS_ROLE="MS_SCHED", RANK_TABLE_FILE="/nowhere").notes
    assert "it cannot be read: No such file or directory" in note
    assert load(RANK_TABLE_FILE="/nowhere").notes == (), "only the scheduler reads it"
